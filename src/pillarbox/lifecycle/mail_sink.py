"""From tokens to mails: their links, the words of their portals, and storing them among all other mails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from pillarbox.accept.prepare import prepare_mail
from pillarbox.errors import InvalidMail, NotAllowed, RenderError, SecretError
from pillarbox.lifecycle.mail_writer import (
    CLASS,
    SIGN_IN_CODE,
    LifecycleRecipient,
    MailDetails,
    MailWriter,
)
from pillarbox.lifecycle.one_time_codes import CodeRequest, IssuedCode, realm_of
from pillarbox.lifecycle.signing import SignedPath, SigningKeyRing, link, sign, sign_expiry
from pillarbox.model.access import Principal, Scope, Tenant
from pillarbox.model.delivery import LANES
from pillarbox.store import intake, tenants
from pillarbox.store.intake import MailRow, NotStored
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    import asyncpg

    from pillarbox.accept.mail import Mail
    from pillarbox.lifecycle.one_time_codes import OneTimeCodes
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database
    from pillarbox.store.lifecycle import DueToken, TokenStore

log = logs.get("pillarbox.collector")
# Mails stored by one statement, while the next ones are being written: some megabytes, on both
# sides.
TOGETHER = 250
# Mails written before others in this process get a turn: some milliseconds.
SLICE = 20
# Seconds after which a token that was set aside is tried again: soon after somebody mended its
# template.
AGAIN = 60.0
# Of what is noted about a token that was set aside: one line on a screen, or two.
PROBLEM_CHARACTERS = 300
# How long a tenant's settings are remembered, in seconds; as long as a worker remembers its
# providers.
REMEMBERED = 2.0
_FAULTS = {
    "unknown_class": f"there is no class '{CLASS}': add it with `pillarbox class add`",
    "big_metadata": "its metadata is too big",
    "late_send_at": "it would be sent too late",
}


class SinkResult(NamedTuple):
    """What became of tokens: those settled, with outcome and mail, and those set aside, with why and for how long."""

    settled: list[tuple[int, str, UUID | None]]
    held: list[tuple[int, str, str | None, float]]

    def set_aside(self, token: int, problem: str) -> None:
        self.held.append((token, "rendering", problem[:PROBLEM_CHARACTERS], AGAIN))

    def left_of(self, batch: Sequence[DueToken]) -> list[DueToken]:
        """Those tokens of a batch of which nothing is known yet."""
        known = {token for token, *_ in (*self.settled, *self.held)}
        return [due for due in batch if due.token not in known]


class WrittenMail(NamedTuple):
    """A token's mail, written and checked."""

    due: DueToken
    entry: MailRow


class TokenCodes:
    """The codes of tokens whose code is made when they are mailed. `codes` is asked for only when there are any."""

    def __init__(self, codes: Callable[[], Awaitable[OneTimeCodes]], schema: str) -> None:
        self._codes = codes
        self._realm = realm_of(schema)

    async def make(
        self,
        connection: asyncpg.Connection,
        batch: Sequence[DueToken],
        now: float,
        done: SinkResult,
    ) -> dict[int, IssuedCode]:
        """New codes, by token; older ones of the same accounts are void.

        A token within the pause, or beyond the limit of a day, gets none: it is settled as
        `paused`. Without a key ring, all of them are set aside.
        """
        asking = [due for due in batch if due.action == SIGN_IN_CODE]
        if not asking:
            return {}
        try:
            codes = await self._codes()
        except SecretError as error:
            for due in asking:
                done.set_aside(due.token, str(error))
            return {}
        paused = await codes.paused(connection, self._realm, [due.email for due in asking])
        done.settled.extend(
            (due.token, "paused", None) for due, wait in zip(asking, paused, strict=True) if wait
        )
        asking = done.left_of(asking)
        wanted = [
            CodeRequest(due.account, due.email, due.token, max(1.0, due.expires_at - now))
            for due in asking
        ]
        made = await codes.make(connection, self._realm, wanted)
        return {due.token: one for due, one in zip(asking, made, strict=True)}

    async def mailed(
        self, connection: asyncpg.Connection, made: Mapping[int, IssuedCode], done: SinkResult
    ) -> None:
        """Note which mails carry them."""
        mails = [
            (made[token].id, mail)
            for token, _, mail in done.settled
            if mail is not None and token in made
        ]
        if mails:
            await (await self._codes()).mailed(connection, mails)


class TokenMailWriter:
    """Writes a token's mail."""

    def __init__(self, mails: MailWriter, keys: SigningKeyRing, settings: Settings) -> None:
        self._mails = mails
        self._keys = keys
        self._base = settings.lifecycle_url or f"http://{settings.http}"

    def write(self, due: DueToken, tenant: Tenant, made: IssuedCode | None, now: float) -> Mail:
        """The mail, in the words of its portal and language; RenderError where the template does not allow it."""
        data = {**due.account_data, **due.token_data}
        reader = LifecycleRecipient(due.email, due.login, due.name, due.portal, due.locale, data)
        expires = (
            now + made.seconds if made else due.expires_at
        )  # a code may last for less time than its token
        matter = MailDetails(
            expires_at=datetime.fromtimestamp(expires, UTC),
            seconds=expires - now,
            code=made.code if made else due.code if due.with_code else None,
            link=self._link(due),
            action=due.action,
            template=due.template,
            lane=LANES[due.lane],
            metadata={"token": due.token, "account": due.account},
        )
        return self._mails.write(reader, matter, tenant)

    def _link(self, due: DueToken) -> str | None:
        if due.path is None:
            return None
        key = self._keys.newest()
        token = sign(SignedPath(due.path, due.with_code), due.secret, due.code, key)
        return link(self._base, due.path, token, sign_expiry(token, due.expires_at, key))


class MailSink:
    """Mails tokens, in the transaction that took them."""

    # Python and PostgreSQL work at the same time then, each on a processor of its own.
    at_once = 2

    def __init__(
        self,
        database: Database,
        tokens: TokenStore,
        writer: TokenMailWriter,
        codes: TokenCodes,
        tenant: str,
    ) -> None:
        self._database = database
        self._tokens = tokens
        self._writer = writer
        self._codes = codes
        self._tenant = tenant
        self._principal: tuple[float, Principal] | None = None
        self._ahead: float | None = None  # the database's clock against ours

    async def send(self, connection: asyncpg.Connection, batch: Sequence[DueToken]) -> SinkResult:
        """Write and store the mails of these tokens; whoever cannot be is set aside, and the others leave."""
        principal = await self._as_tenant()
        if self._ahead is None:
            self._ahead = await intake.clock(connection) - time.time()
        done, written = SinkResult([], []), list[WrittenMail]()
        made = await self._codes.make(connection, batch, self._now(), done)
        batch = done.left_of(batch)  # a token that gets no code takes no earlier mail's place
        await self._tokens.supersede(connection, [due.token for due in batch])
        for begin in range(0, len(batch) + TOGETHER, TOGETHER):  # the last turn only stores
            part = batch[begin : begin + TOGETHER]
            written, _ = await asyncio.gather(
                self._write(part, principal, made, done), self._store(connection, written, done)
            )
        await self._codes.mailed(connection, made, done)
        return done

    def give_up(self) -> None:
        """Nothing that a statement's own time-out would not end."""

    def _now(self) -> float:
        return time.time() + (self._ahead or 0.0)

    async def _as_tenant(self) -> Principal:
        """Whose mails they are, with its limits."""
        if self._principal is None or time.monotonic() > self._principal[0]:
            tenant = await tenants.get_tenant(self._database, self._tenant)
            whose = Principal("collector", "collector", tenant, frozenset({Scope.SEND}))
            self._principal = time.monotonic() + REMEMBERED, whose
        return self._principal[1]

    async def _write(
        self,
        part: Sequence[DueToken],
        principal: Principal,
        made: Mapping[int, IssuedCode],
        done: SinkResult,
    ) -> list[WrittenMail]:
        """Those mails that can be written. Whatever goes wrong with one is noted, and harms no other."""
        written, now, tenant = list[WrittenMail](), self._now(), principal.tenant
        assert tenant is not None
        for place, due in enumerate(part):
            if place % SLICE == 0:
                await asyncio.sleep(0)
            try:
                mail = self._writer.write(due, tenant, made.get(due.token), now)
                written.append(
                    WrittenMail(due, prepare_mail(principal, mail, None, "lifecycle").row)
                )
            except (RenderError, InvalidMail, NotAllowed, SecretError, ValueError) as error:
                done.set_aside(due.token, str(error))
            except Exception as error:
                log.error("a token could not be made a mail", token=due.token, exc=error)
                done.set_aside(due.token, f"a fault in Pillarbox: {type(error).__name__}")
        return written

    async def _store(
        self, connection: asyncpg.Connection, written: Sequence[WrittenMail], done: SinkResult
    ) -> None:
        """Store mails with one statement, or one by one where a single one made the statement fail."""
        if not written:
            return
        ids = intake.new_ids(len(written), self._now())
        try:
            async with (
                connection.transaction()
            ):  # a savepoint: what fails takes nothing else with it
                verdicts, now = await intake.accept(connection, ids, [one.entry for one in written])
        except NotStored as error:
            if len(written) == 1:
                done.set_aside(written[0].due.token, str(error.reason))
                return
            for one in written:
                await self._store(connection, [one], done)
            return
        self._ahead = now - time.time()
        for one, mail, verdict in zip(written, ids, verdicts, strict=True):
            _note(one.due.token, mail, verdict, done)


def _note(token: int, mail: UUID, verdict: str, done: SinkResult) -> None:
    if verdict in ("queued", "pending"):
        done.settled.append((token, "mailed", mail))
    elif verdict == "early_expires_at":
        done.settled.append((token, "expired", None))  # while it was being written
    else:
        done.set_aside(token, _FAULTS.get(verdict, verdict))
