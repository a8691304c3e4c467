"""The account pages, such as `/activate`: public, because a signed link authenticates itself.

GET shows a form and changes nothing, however often a scanner opens the link; POST uses the link.
Browsers get HTML, programs JSON.
"""

from __future__ import annotations

import asyncio
import time
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from pillarbox.accept.auth import PEER_FACTOR, network_of
from pillarbox.api.account_pages import Branding
from pillarbox.api.account_request import AccountRequest
from pillarbox.api.auth import peer_of
from pillarbox.api.bodies import BodyBudget
from pillarbox.api.problems import EXPECTED, STORE_RETRY, ProblemError, problem_of
from pillarbox.errors import (
    ForgedToken,
    InvalidToken,
    NoAnswer,
    PasswordRefused,
    RenderError,
    SecretError,
    StoreError,
    Throttled,
    WrongCode,
)
from pillarbox.lifecycle.account_links import AccountLinks, check, check_account
from pillarbox.lifecycle.password_hook import PasswordHook
from pillarbox.lifecycle.signing_keys import key_ring
from pillarbox.model.throttle import Failures
from pillarbox.store import lifecycle_schema
from pillarbox.store.lifecycle import TokenStore
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pillarbox.app import App
    from pillarbox.store.lifecycle import TokenAction, TokenState

log = logs.get("pillarbox.http")
ALLOWED = "GET, HEAD, POST, OPTIONS"
# A token, its expiry and a code are some 150 bytes; browsers add little.
MAX_BYTES = 8 * 1024
# Seconds after which the page of a new action works: before a person opens its first mail.
REFRESH = 2.0
# The action whose page can set a new password.
PASSWORD_RECOVERY = "password_recovery"  # noqa: S105 -- a name, not a password
LATER = {"Retry-After": str(STORE_RETRY)}


class RouteLabel(NamedTuple):
    """The label of the route in the metrics."""

    path: str


class Actions:
    """The actions with a path, read from the database every few seconds."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._tokens = TokenStore(app.settings.lifecycle_schema)
        self._known: dict[str, TokenAction] | None = None
        self._due = 0.0
        self._reading = asyncio.Lock()

    async def at(self, path: str) -> TokenAction | None:
        """The action of a path; None where there is none, or no lifecycle schema at all."""
        if time.monotonic() >= self._due:
            async with self._reading:
                await self._refresh()
        assert self._known is not None
        return self._known.get(path)

    async def _refresh(self) -> None:
        """Read the actions again if they are old; keep them if the database is unavailable."""
        if time.monotonic() < self._due:
            return
        try:
            self._known = await self._read()
        except StoreError:
            if self._known is None:
                raise
        self._due = time.monotonic() + REFRESH

    async def _read(self) -> dict[str, TokenAction]:
        database = self._app.database
        if not await lifecycle_schema.is_installed(database, self._tokens.schema):
            return {}
        return {
            action.path: action
            for action in await self._tokens.actions(database)
            if action.path is not None
        }


class AccountEndpoint:
    """Answers the paths of actions; passes all other requests to `otherwise`."""

    def __init__(self, app: App, otherwise: ASGIApp) -> None:
        self._app = app
        self._otherwise = otherwise

    @cached_property
    def _actions(self) -> Actions:
        return Actions(self._app)

    @cached_property
    def _links(self) -> AccountLinks:
        app = self._app
        return AccountLinks(
            app.database, TokenStore(app.settings.lifecycle_schema), key_ring(app.settings)
        )

    @cached_property
    def _hook(self) -> PasswordHook | None:
        """Sets new passwords; None if the application does that on a page of its own."""
        return PasswordHook(self._app.settings) if self._app.settings.recovery_hook_url else None

    @cached_property
    def _failures(self) -> Failures:
        """Counted separately from keys: guessed links do not lock out API clients."""
        return Failures(self._app.settings.auth_failures_per_minute * PEER_FACTOR)

    @cached_property
    def _bodies(self) -> BodyBudget:
        return BodyBudget(self._app.settings.http_concurrency * MAX_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        action = None
        if scope["type"] == "http":
            action = await self._actions.at(scope["path"])
        if action is None:
            await self._otherwise(scope, receive, send)
            return
        scope["route"] = RouteLabel(scope["path"])
        sets_password = action.name == PASSWORD_RECOVERY and self._hook is not None
        locale = self._app.settings.lifecycle_locale
        request = AccountRequest(
            Request(scope, receive), action, locale, self._branding_of, sets_password=sets_password
        )
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: AccountRequest) -> Response:
        try:
            return await self._respond(request)
        except InvalidToken as error:
            if self._counted(request, error):
                return request.invalid_link_response(error)
            return request.problem_response(self._throttled(request))
        except PasswordRefused as error:
            return request.refused_password_response(error)
        except NoAnswer as error:  # of the application's endpoint
            return request.problem_response(ProblemError("overloaded", str(error), headers=LATER))
        except SecretError as error:
            log.error("links cannot be verified", error=str(error))
            return request.problem_response(
                ProblemError("overloaded", "links cannot be verified now", headers=LATER)
            )
        except (ProblemError, *EXPECTED) as error:
            return request.problem_response(problem_of(error))

    async def _respond(self, request: AccountRequest) -> Response:
        match request.http.method:
            case "GET" | "HEAD":
                return await self._show(request)
            case "POST":
                return await self._use(request)
            case "OPTIONS":
                return Response(status_code=204, headers={"Allow": ALLOWED})
        raise ProblemError(
            "method-not-allowed",
            "the path does not support this method",
            headers={"Allow": ALLOWED},
        )

    async def _show(self, request: AccountRequest) -> Response:
        """Show the form. Changes nothing: mail scanners open every link of a mail."""
        request.read_query()
        state = await self._look(request, self._prove(request))
        check(state)
        return request.form_response(state)

    async def _use(self, request: AccountRequest) -> Response:
        with self._bodies.hold(MAX_BYTES) as body:
            request.read_body(await body.read(request.http.headers, request.http.receive))
        secret = self._prove(request)
        check_account((await self._look(request, secret)).status)
        if request.sets_password and self._hook is not None:
            password = request.new_password()
            used = await self._links.use_with(
                request.action, request.fields, secret, self._hook, password
            )
        else:
            used = await self._links.use(request.action, request.fields, secret)
        self._app.authenticator.admit("link")
        request.set_account(used)
        return request.done_response(used)

    def _prove(self, request: AccountRequest) -> bytes:
        """The secret of a valid link; links without a signature are throttled after failures."""
        proof = self._links.prove(request.action, request.fields)
        if not proof.is_signed and self._wait(request):
            raise self._throttled(request)
        return proof.secret

    async def _look(self, request: AccountRequest, secret: bytes) -> TokenState:
        """The account of the link; responses then have its branding and language."""
        state = await self._links.look(request.action, secret)
        request.set_account(state)
        return state

    def _counted(self, request: AccountRequest, error: InvalidToken) -> bool:
        """Count a failure that may be a guess; false if there were too many.

        Signed links are always answered: other clients of the same address cannot lock them out.
        """
        if isinstance(error, ForgedToken) and self._wait(request):
            self._app.metrics.authentications.labels("link", "throttled").inc()
            return False
        if isinstance(error, ForgedToken | WrongCode):
            self._failures.add(network_of(peer_of(request.http)), time.monotonic())
            self._app.metrics.authentications.labels("link", "refused").inc()
        return True

    def _wait(self, request: AccountRequest) -> float:
        return self._failures.wait(network_of(peer_of(request.http)), time.monotonic())

    def _throttled(self, request: AccountRequest) -> ProblemError:
        return problem_of(Throttled("too many failures from your address", self._wait(request)))

    def _branding_of(self, portal: str, language: str) -> Branding:
        """The branding of a portal; plain, with a log entry, if its portal.toml is invalid."""
        try:
            found = self._app.lifecycle.templates.portal(portal)
        except RenderError as error:
            log.warning("the branding of a portal is invalid", portal=portal, error=str(error))
            return Branding(portal)
        links = found.seen_in(language, self._app.settings.lifecycle_locale)["links"]
        return Branding(
            found.name, found.initials, found.colours["accent"], found.colours["accent_text"], links
        )
