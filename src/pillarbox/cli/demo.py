"""`up --demo`: provider twins in this process, and a steady flow of sample mails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp

from pillarbox.accept.enqueue import enqueue
from pillarbox.accept.mail import Attachment, Mail
from pillarbox.errors import NotFound, NotPossible
from pillarbox.loops import wait_for_any
from pillarbox.model.provider import feedback_path
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.secret import Secret
from pillarbox.store import providers, routes
from pillarbox.telemetry import logs
from pillarbox.testing.twins import TWINS, Dials, FeedbackDials, SesTwin, Twin

if TYPE_CHECKING:
    from pillarbox.app import App

log = logs.get("pillarbox.demo")
KINDS = {f"demo-{kind}": twin for kind, twin in TWINS.items()}
ROUTE = "demo"
# Seconds between two mails: slow enough to watch each of them.
INTERVAL = 2.0
# A remote service with occasional errors.
DIALS = Dials(latency=0.05, status=503, share=0.03)
# More problems than a healthy sender has, so that there is something to see.
FEEDBACK = FeedbackDials(
    bounced=0.06,
    deferred=0.1,
    opened=0.4,
    clicked=0.15,
    complained=0.03,
    unsubscribed=0.02,
    delay=1.0,
    late=3.0,
    duplicate=0.05,
)
# Recipients: few enough that a bounce suppresses one of them now and then.
READERS = 400
SENDER = "Shop <hello@shop.example>"
RECEIPT = Attachment("receipt.txt", b"1 x tea, 3.50\n", "text/plain")


class Demo:
    """The twins, and the mails that are sent through them."""

    def __init__(self, twins: Mapping[str, Twin], ids: Mapping[str, int]) -> None:
        self.twins = twins
        self._ids = ids  # of the providers, by name
        self._begun = asyncio.Event()
        self._lots = random.Random()  # noqa: S311 -- chooses readers, not secrets

    def begin(self, url: str) -> None:
        """Start: the HTTP server at this URL accepts feedback now."""
        for name, twin in self.twins.items():
            twin.webhook_url = url.rstrip("/") + feedback_path(twin.kind, self._ids[name])
        self._begun.set()

    async def run(self, app: App, stop: asyncio.Event) -> None:
        """Send some mails at once and then one per interval, until `stop`."""
        await wait_for_any(self._begun, stop)
        if stop.is_set():
            return
        await self._subscribe()
        for mail in [*_samples(self._lots), *_samples(self._lots)]:
            await _send(app, mail)
        await app.supervisor.run_every(
            "demo",
            INTERVAL,
            partial(self._trickle, app),
            stop,
        )

    async def _subscribe(self) -> None:
        """Confirm the SNS subscription."""
        for twin in self.twins.values():
            if isinstance(twin, SesTwin):
                with suppress(aiohttp.ClientError, TimeoutError):
                    status = await twin.subscribe()
                    log.info(
                        "demo: SNS subscription requested",
                        status=status,
                        confirmed=len(twin.confirmed),
                    )

    async def _trickle(self, app: App) -> None:
        await _send(app, self._lots.choice(_samples(self._lots)))

    def described(self) -> str:
        """One line for the banner."""
        urls = ", ".join(f"{twin.kind} {twin.url}" for twin in self.twins.values())
        return (
            f"simulated servers on this machine ({urls}); a mail every {INTERVAL:g} s, some bounce"
        )


@asynccontextmanager
async def demonstration(app: App, *, wanted: bool) -> AsyncIterator[Demo | None]:
    """Inside, the demo's providers are the twins. Providers of an earlier demo are removed."""
    if app.settings.database_url is not None:
        yield None
        return
    await _forget(app)
    if not wanted:
        yield None
        return
    await _check(app)
    async with AsyncExitStack() as stack:
        twins = {
            name: await stack.enter_async_context(kind(DIALS, feedback=FEEDBACK))
            for name, kind in KINDS.items()
        }
        ids = {name: await _add(app, name, twin) for name, twin in twins.items()}
        await routes.add_route(
            app.database,
            ROUTE,
            None,
            list(ids),
            weights=dict.fromkeys(ids, 1),
        )
        try:
            yield Demo(twins, ids)
        finally:
            await _forget(app)


async def _check(app: App) -> None:
    """Refuse to send sample mails while a real provider is enabled."""
    real = [
        provider.name
        for provider in await providers.list_providers(app.database)
        if provider.enabled and kind_of(provider.kind).sends_out
    ]
    if real:
        raise NotPossible(
            f"--demo sends sample mails, but {app.settings.data_dir} has a provider that would"
            f" really send them ({', '.join(real)}): choose another directory with --data DIR"
        )


async def _add(app: App, name: str, twin: Twin) -> int:
    webhook_secret = None
    if twin.webhook_secret:
        webhook_secret = Secret(twin.webhook_secret)
    return await providers.add_provider(
        app.database,
        app.keys,
        name,
        twin.kind,
        twin.provider_settings(),
        Secret(twin.secret),
        webhook_secret=webhook_secret,
        demo=True,
    )


async def _forget(app: App) -> None:
    """Remove the providers and the route of a demo."""
    demo_providers = [
        provider
        for provider in await providers.list_providers(app.database)
        if provider.name in KINDS and _on_loopback(provider.settings)
    ]
    if not demo_providers:
        return
    with suppress(NotFound):
        found = await routes.find_route(app.database, ROUTE, None)
        await routes.remove_route(app.database, found.rule.id)
    for provider in demo_providers:
        await providers.remove_provider(app.database, provider.name)


def _on_loopback(settings: Mapping[str, object]) -> bool:
    return str(settings.get("url")).startswith("http://127.0.0.1:")


async def _send(app: App, mail: Mail) -> None:
    async with app.database.transaction() as connection:
        await enqueue(connection, mail)


def _samples(lots: random.Random) -> list[Mail]:
    """One mail of each kind, for random recipients."""

    def mail(
        kind: str,
        subject: str,
        text: str,
        readers: int = 1,
        **more: Any,
    ) -> Mail:
        people = sorted({f"reader{lots.randrange(READERS)}@mail.example" for _ in range(readers)})
        return Mail(
            sender=SENDER,
            to=people,
            subject=subject,
            text=text,
            kind=kind,
            tags="demo",
            **more,
        )

    return [
        mail(
            "welcome",
            "Welcome",
            "Welcome!",
            html="<h1>Welcome</h1><p><a href='https://shop.example/'>Look</a></p>",
        ),
        mail("shipped", "Your order has shipped", "It is on its way."),
        mail(
            "receipt",
            "Your receipt",
            "Thank you.",
            attachments=[RECEIPT],
        ),
        mail(
            "password_reset",
            "Reset your password",
            "Follow the link.",
            priority="urgent",
        ),
        mail(
            "newsletter",
            "News of the week",
            "There is news.",
            readers=3,
            priority="bulk",
        ),
    ]
