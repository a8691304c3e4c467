"""Turns tokens into mails: makes their codes and links, renders them, and stores them."""

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
# Mails stored by one statement while the next ones are rendered: a few megabytes on both sides.
STORED_TOGETHER = 250
# Mails rendered before other tasks of this process get a turn: a few milliseconds.
RENDERED_PER_TURN = 20
# Seconds until a token that was set aside is tried again: soon after its template was repaired.
RETRY_AFTER = 60.0
# Length of the problem stored with a token that was set aside: one or two lines on a screen.
MAX_PROBLEM_LENGTH = 300
# Seconds for which a tenant's settings are cached; as long as a worker caches its providers.
TENANT_CACHE_SECONDS = 2.0
_PROBLEMS = {
    "unknown_class": f"the class '{CLASS}' does not exist: add it with `pillarbox class add`",
    "big_metadata": "its metadata is too big",
    "late_send_at": "its send_at is too late",
}


class SinkResult(NamedTuple):
    """The result of a batch.

    `settled` has token, outcome and mail; `held` has token, hold, problem and seconds of the hold.
    """

    settled: list[tuple[int, str, UUID | None]]
    held: list[tuple[int, str, str | None, float]]

    def set_aside(self, token: int, problem: str) -> None:
        self.held.append((token, "rendering", problem[:MAX_PROBLEM_LENGTH], RETRY_AFTER))

    def without_result(self, batch: Sequence[DueToken]) -> list[DueToken]:
        """The tokens of a batch that have no result yet."""
        finished = {token for token, *_ in self.settled}
        finished.update(token for token, *_ in self.held)
        return [due for due in batch if due.token not in finished]


class WrittenMail(NamedTuple):
    """The rendered and checked mail of a token."""

    due: DueToken
    row: MailRow


class TokenCodes:
    """Issues the codes of tokens whose code is made when they are mailed.

    `codes` is called only if a batch has such a token.
    """

    def __init__(self, codes: Callable[[], Awaitable[OneTimeCodes]], schema: str) -> None:
        self._codes = codes
        self._realm = realm_of(schema)

    async def issue(
        self,
        connection: asyncpg.Connection,
        batch: Sequence[DueToken],
        now: float,
        result: SinkResult,
    ) -> dict[int, IssuedCode]:
        """New codes, by token; older codes of the same accounts become void.

        A token within the pause or beyond the daily limit gets no code: it is settled as `paused`.
        Without a key ring all these tokens are set aside.
        """
        with_code = [due for due in batch if due.action == SIGN_IN_CODE]
        if not with_code:
            return {}
        try:
            codes = await self._codes()
        except SecretError as error:
            for due in with_code:
                result.set_aside(due.token, str(error))
            return {}
        addresses = [due.email for due in with_code]
        paused = await codes.paused(connection, self._realm, addresses)
        allowed: list[DueToken] = []
        for due, is_paused in zip(with_code, paused, strict=True):
            if is_paused:
                result.settled.append((due.token, "paused", None))
            else:
                allowed.append(due)
        requests = [_code_request(due, now) for due in allowed]
        issued = await codes.issue(connection, self._realm, requests)
        return {due.token: code for due, code in zip(allowed, issued, strict=True)}

    async def mailed(
        self,
        connection: asyncpg.Connection,
        issued: Mapping[int, IssuedCode],
        result: SinkResult,
    ) -> None:
        """Store which mails carry the codes."""
        mails = [
            (issued[token].id, mail)
            for token, _, mail in result.settled
            if mail is not None and token in issued
        ]
        if mails:
            codes = await self._codes()
            await codes.mailed(connection, mails)


def _code_request(due: DueToken, now: float) -> CodeRequest:
    lifetime = max(1.0, due.expires_at - now)
    return CodeRequest(
        due.account,
        due.email,
        due.token,
        lifetime,
    )


class TokenMailWriter:
    """Renders the mail of a token."""

    def __init__(
        self,
        mail_writer: MailWriter,
        keys: SigningKeyRing,
        settings: Settings,
    ) -> None:
        self._mail_writer = mail_writer
        self._keys = keys
        self._base_url = settings.lifecycle_url or f"http://{settings.http}"

    def write(
        self,
        due: DueToken,
        tenant: Tenant,
        issued: IssuedCode | None,
        now: float,
    ) -> Mail:
        """The mail in the portal's words and language; RenderError if the template fails."""
        recipient = LifecycleRecipient(
            email=due.email,
            login=due.login,
            name=due.name,
            portal=due.portal,
            locale=due.locale,
            data={**due.account_data, **due.token_data},
        )
        code = None
        expires_at: float = due.expires_at
        if issued is not None:
            code = issued.code
            expires_at = now + issued.seconds  # a code may have a shorter lifetime than its token
        elif due.with_code:
            code = due.code
        details = MailDetails(
            expires_at=datetime.fromtimestamp(expires_at, UTC),
            seconds=expires_at - now,
            code=code,
            link=self._link(due),
            action=due.action,
            template=due.template,
            lane=LANES[due.lane],
            metadata={"token": due.token, "account": due.account},
        )
        return self._mail_writer.write(recipient, details, tenant)

    def _link(self, due: DueToken) -> str | None:
        if due.path is None:
            return None
        key = self._keys.newest()
        token = sign(
            SignedPath(due.path, due.with_code),
            due.secret,
            due.code,
            key,
        )
        expiry = sign_expiry(token, due.expires_at, key)
        return link(
            self._base_url,
            due.path,
            token,
            expiry,
        )


class MailSink:
    """Mails tokens in the transaction that took them."""

    # Python renders one batch while PostgreSQL stores another, each on a processor of its own.
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
        self._tenant_name = tenant
        self._principal: Principal | None = None
        self._principal_expires = 0.0
        self._clock_offset: float | None = None  # the database's clock minus this machine's

    async def send(self, connection: asyncpg.Connection, batch: Sequence[DueToken]) -> SinkResult:
        """Render and store the mails; a token whose mail fails is set aside, the others leave."""
        principal = await self._load_principal()
        if self._clock_offset is None:
            self._clock_offset = await intake.clock(connection) - time.time()
        result = SinkResult([], [])
        issued = await self._codes.issue(
            connection,
            batch,
            self._now(),
            result,
        )
        # A token without a code supersedes no earlier mail.
        batch = result.without_result(batch)
        await self._tokens.supersede(connection, [due.token for due in batch])
        written = list[WrittenMail]()
        for start in range(0, len(batch), STORED_TOGETHER):
            part = batch[start : start + STORED_TOGETHER]
            rendering = self._render(
                part,
                principal,
                issued,
                result,
            )
            storing = self._store(connection, written, result)
            written, _ = await asyncio.gather(rendering, storing)
        await self._store(connection, written, result)
        await self._codes.mailed(connection, issued, result)
        return result

    def give_up(self) -> None:
        """Nothing to do: PostgreSQL's statement timeout ends a slow batch."""

    def _now(self) -> float:
        return time.time() + (self._clock_offset or 0.0)

    async def _load_principal(self) -> Principal:
        """The tenant that owns the mails, with its limits; cached for a short time."""
        if self._principal is None or time.monotonic() > self._principal_expires:
            tenant = await tenants.get_tenant(self._database, self._tenant_name)
            scopes = frozenset({Scope.SEND})
            self._principal = Principal(
                "collector",
                "collector",
                tenant,
                scopes,
            )
            self._principal_expires = time.monotonic() + TENANT_CACHE_SECONDS
        return self._principal

    async def _render(
        self,
        part: Sequence[DueToken],
        principal: Principal,
        issued: Mapping[int, IssuedCode],
        result: SinkResult,
    ) -> list[WrittenMail]:
        """The mails that can be rendered; an error sets aside its own token only."""
        tenant = principal.tenant
        assert tenant is not None
        now = self._now()
        written = list[WrittenMail]()
        for index, due in enumerate(part):
            if index % RENDERED_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                mail = self._writer.write(
                    due,
                    tenant,
                    issued.get(due.token),
                    now,
                )
                row = prepare_mail(
                    principal,
                    mail,
                    None,
                    "lifecycle",
                ).row
            except (RenderError, InvalidMail, NotAllowed, SecretError, ValueError) as error:
                result.set_aside(due.token, str(error))
            except Exception as error:
                log.error("unexpected error while rendering a token", token=due.token, exc=error)
                result.set_aside(due.token, f"a fault in Pillarbox: {type(error).__name__}")
            else:
                written.append(WrittenMail(due, row))
        return written

    async def _store(
        self,
        connection: asyncpg.Connection,
        written: Sequence[WrittenMail],
        result: SinkResult,
    ) -> None:
        """Store mails with one statement; one by one if the statement fails."""
        if not written:
            return
        ids = intake.new_ids(len(written), self._now())
        rows = [mail.row for mail in written]
        try:
            async with connection.transaction():  # a savepoint: a failure undoes these mails only
                verdicts, now = await intake.accept(connection, ids, rows)
        except NotStored as error:
            if len(written) == 1:
                result.set_aside(written[0].due.token, str(error.reason))
                return
            for mail in written:
                await self._store(connection, [mail], result)
            return
        self._clock_offset = now - time.time()
        for mail, mail_id, verdict in zip(
            written,
            ids,
            verdicts,
            strict=True,
        ):
            _add_verdict(
                mail.due.token,
                mail_id,
                verdict,
                result,
            )


def _add_verdict(
    token: int,
    mail_id: UUID,
    verdict: str,
    result: SinkResult,
) -> None:
    if verdict in ("queued", "pending"):
        result.settled.append((token, "mailed", mail_id))
    elif verdict == "early_expires_at":  # it expired while it was rendered
        result.settled.append((token, "expired", None))
    else:
        result.set_aside(token, _PROBLEMS.get(verdict, verdict))
