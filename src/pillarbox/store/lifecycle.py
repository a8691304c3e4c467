"""Stored accounts and tokens of a lifecycle schema: for the collector, links and codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from pillarbox.errors import (
    ExpiredToken,
    InvalidMail,
    InvalidToken,
    NotFound,
    NotPossible,
    StoreDataError,
    SupersededToken,
    UsedToken,
    WrongCode,
)
from pillarbox.store import messages, sql
from pillarbox.store.database import Db, translated
from pillarbox.store.lifecycle_schema import quoted

URGENT, BULK = 0, 2
# Set-aside tokens on one page of a list.
LISTED = 100
# Tokens released by one statement: others wait only a moment for its locks.
RELEASED = 1000
# Older tokens whose mails a new token cancels: each of them did the same, so only mails of the last
# few can still wait.
OLDER = 50

# SQLSTATE of an invalid text representation: here, an action that does not exist.
_INVALID_TEXT = "22P02"
_REFUSALS: dict[str, Callable[[str], InvalidToken]] = {
    "PB404": InvalidToken,
    "PB410": UsedToken,
    "PB411": ExpiredToken,
    "PB412": SupersededToken,
    "PB413": lambda message: WrongCode(message, void=True),
}


class DueToken(NamedTuple):
    """A taken token with its account and its action.

    `verdict` None: to be mailed; `expired`, `consumed`, `superseded`, `gone`: settle it so;
    `account`: hold it, since its account is not eligible now. If it is `gone`, only `token`, `lane`
    and `verdict` are set.
    """

    token: int
    account: int
    action: str
    number: int
    path: str | None  # None: a notice without a link
    with_code: bool  # the code is part of what is signed
    secret: bytes
    code: str | None
    expires_at: int
    created_at: int
    email: str
    login: str
    name: str | None
    portal: str
    locale: str | None
    template: str
    lane: int  # 0 urgent, 1 normal, 2 bulk
    account_data: dict[str, Any]
    token_data: dict[str, Any]
    verdict: str | None


_ACCOUNT_DATA = DueToken._fields.index("account_data")
_TOKEN_DATA = DueToken._fields.index("token_data")


class TokenCounts(NamedTuple):
    """How many tokens can be taken now, and how many of them are urgent; counted up to a limit."""

    ready: int
    urgent: int


class SetAsideToken(NamedTuple):
    """A token that could not be rendered or stored; `problem` says why, without personal data."""

    token: int
    account: int | None  # None: it was deleted meanwhile
    action: str | None
    portal: str | None
    template: str | None
    tries: int
    problem: str | None
    created_at: int | None
    expires_at: int | None
    again_in: float  # seconds until it is tried again


class ResentToken(NamedTuple):
    """The token that is collected again; `is_new`: it replaces one that had expired."""

    token: int
    is_new: bool


class TokenState(NamedTuple):
    """A token's state: `good`, `used`, `expired`, `superseded` or `void` (too many wrong codes)."""

    state: str
    token: int
    account: int
    action: str
    with_code: bool
    expires_at: int
    wrong_codes: int
    login: str
    name: str | None
    portal: str
    locale: str | None
    email: str
    status: str


class Account(NamedTuple):
    id: int
    email: str
    login: str
    name: str | None
    status: str  # provisioned, active or suspended
    portal: str
    locale: str | None
    data: dict[str, Any]


class TokenAction(NamedTuple):
    """An action; `path` None: its mails have no link."""

    name: str
    number: int
    path: str | None
    with_code: bool
    lane: str
    template: str
    activates: bool
    lifetime_seconds: int


class TokenStore:
    """The tokens and accounts in one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._sql = sql.load("lifecycle", quoted(schema))

    async def count(self, db: Db, limit: int) -> TokenCounts:
        """The tokens that can be taken now, counted up to `limit`."""
        row = await db.fetchrow(*self._sql.count(limit=limit))
        assert row is not None
        return TokenCounts(**row)

    async def take(
        self, connection: asyncpg.Connection, limit: int, *, urgent_only: bool = False
    ) -> list[DueToken]:
        """Lock up to `limit` tokens until the transaction ends; other collectors skip them.

        Urgent tokens first, then by id. Each must be settled or held in the same transaction;
        otherwise it is taken again.
        """
        max_lane = URGENT if urgent_only else BULK
        rows = await connection.fetch(*self._sql.take(limit=limit, max_lane=max_lane))
        return [_due(row) for row in rows]

    async def settle(
        self,
        connection: asyncpg.Connection,
        outcomes: Sequence[tuple[int, str, UUID | None]],
        queue: str = "mailroom",
    ) -> None:
        """End taken tokens: (token, outcome, its mail); the row `queue` of `jobs` shows progress.

        Outcomes: `mailed`, `written`, `paused`, `expired`, `consumed`, `superseded`, `gone`.
        """
        if outcomes:
            tokens, names, message_ids = zip(*outcomes, strict=True)
            await connection.fetch(
                *self._sql.settle(
                    tokens=tokens, outcomes=names, message_ids=message_ids, queue=queue
                )
            )

    async def hold(
        self, connection: asyncpg.Connection, held: Sequence[tuple[int, str, str | None, float]]
    ) -> None:
        """Hold taken tokens: (token, `account` or `rendering`, problem, seconds).

        `rendering`: set aside, and tried again after the seconds. `account`: until the account's
        status changes or the token expires, with a look now and then; problem and seconds are
        ignored.
        """
        if held:
            tokens, reasons, problems, seconds = zip(*held, strict=True)
            await connection.fetch(
                *self._sql.hold(tokens=tokens, reasons=reasons, problems=problems, seconds=seconds)
            )

    async def release_due(self, db: Db) -> int:
        """Release tokens whose hold has ended; returns how many, at most RELEASED."""
        return int(await db.fetchval(*self._sql.release_due(limit=RELEASED)))

    async def supersede(self, connection: asyncpg.Connection, tokens: Sequence[int]) -> int:
        """Cancel unsent mails of older tokens of the same account and action; returns how many.

        Call it in the transaction that took `tokens`, before settling. It waits for collectors that
        have locked older ones; if two wait for each other, PostgreSQL ends one transaction
        (DeadlockDetectedError): try again.
        """
        if not tokens:
            return 0
        await connection.fetch(*self._sql.await_older(tokens=tokens, limit=OLDER))
        rows = await connection.fetch(*self._sql.supersede(tokens=tokens, limit=OLDER))
        if rows:
            mails = list({row["message_id"] for row in rows})
            await connection.fetch(*messages.SQL.drop_secret_contents(message_ids=mails))
        return len(rows)

    async def set_aside(self, db: Db, limit: int = LISTED, after: int = 0) -> list[SetAsideToken]:
        """Tokens that are set aside, oldest first; `after` continues after the last one."""
        rows = await db.fetch(*self._sql.set_aside(limit=limit, after=after))
        return [SetAsideToken(**row) for row in rows]

    async def count_set_aside(self, db: Db, limit: int) -> int:
        """How many tokens are set aside, counted up to `limit`."""
        return int(await db.fetchval(*self._sql.count_set_aside(limit=limit)))

    async def retry_set_aside(self, db: Db, tokens: Sequence[int] | None = None) -> int:
        """Release tokens that are set aside (None: all), notify collectors; returns how many."""
        return int(await db.fetchval(*self._sql.retry_set_aside(tokens=tokens)))

    async def consume(
        self, db: Db, secret: bytes, action: str, code: str | None = None, tries_allowed: int = 5
    ) -> TokenState:
        """Use a token; returns its state. After `tries_allowed` wrong codes it is void.

        UsedToken, ExpiredToken, SupersededToken, WrongCode (`void` after the last try);
        InvalidToken: no such token. Pass a Database: a wrong code counts when its statement
        commits.
        """
        use = self._sql.consume(secret=secret, action=action, code=code, max_tries=tries_allowed)
        with _refusals():
            account = await db.fetchval(*use)
        state = await self.look(db, secret, action, tries_allowed)
        if state is None:  # its account was deleted in between
            raise InvalidToken("there is no such token")
        if account is None:
            raise WrongCode("the code is wrong", void=state.state == "void")
        return state

    async def reserve(self, db: Db, secret: bytes, action: str, seconds: float) -> bool:
        """Reserve a token for the caller for so long; false if it was used or is reserved."""
        lasts = timedelta(seconds=seconds)
        reserve = self._sql.reserve(secret=secret, action=action, lasts=lasts)
        return await db.fetchval(*reserve) is not None

    async def let_go(self, db: Db, secret: bytes, action: str) -> None:
        """End a reservation."""
        await db.execute(*self._sql.let_go(secret=secret, action=action))

    async def look(
        self, db: Db, secret: bytes, action: str, tries_allowed: int = 5
    ) -> TokenState | None:
        """The state of a token, which is not changed; None if there is no such token."""
        look = self._sql.look(secret=secret, action=action, max_tries=tries_allowed)
        row = await db.fetchrow(*look)
        return TokenState(**row) if row else None

    async def find_account(self, db: Db, email: str) -> Account | None:
        """The account with this address, ignoring case; of several, the one spelled the same."""
        return _account(await db.fetchrow(*self._sql.find_account(email=email)))

    async def account(self, db: Db, number: int) -> Account | None:
        return _account(await db.fetchrow(*self._sql.account(id=number)))

    async def paused_account(self, db: Db, token: int) -> int | None:
        """The account of a sign-in token that got no code because of the pause; else None."""
        found: int | None = await db.fetchval(*self._sql.paused_account(token=token))
        return found

    async def actions(self, db: Db) -> list[TokenAction]:
        """All actions by number."""
        return [TokenAction(**row) for row in await db.fetch(*self._sql.actions())]

    async def register_templates(self, db: Db, names: Sequence[str]) -> int:
        """Replace the registered templates (`hub/welcome`); returns how many came or went."""
        pairs = [name.partition("/") for name in names]
        register = self._sql.register_templates(
            portals=[portal for portal, _, _ in pairs], kinds=[kind for _, _, kind in pairs]
        )
        return int(await db.fetchval(*register))

    async def issue(
        self, db: Db, account: int, action: str, data: dict[str, Any] | None = None
    ) -> int:
        """Issue a token of an account with its action's lifetime; returns its id.

        NotFound: the account, action, portal or template does not exist. InvalidMail: the address
        is not legal.
        """
        text = json.dumps(data) if data is not None else None
        issue = self._sql.issue(account=account, action=action, data=text)
        try:
            with translated():
                return int(await db.fetchval(*issue))
        except StoreDataError as error:
            if error.sqlstate != _INVALID_TEXT:
                raise
            raise NotFound(f"there is no action {action!r}") from None
        except asyncpg.PostgresError as error:
            if error.sqlstate == "PB400":
                raise InvalidMail(
                    error.constraint_name, error.column_name, error.detail, error.hint
                ) from None
            if error.sqlstate != "PB404":
                raise
            hint = f" ({error.hint})" if error.hint else ""
            raise NotFound(f"{error.message}{hint}") from None

    async def purge(self, db: Db, age: float, batch: int) -> int:
        """Delete tokens used or expired `age` seconds ago, in batches of rows; returns how many."""
        dropped = 0
        last: int | None = 0
        while last is not None:
            row = await db.fetchrow(
                *self._sql.purge_tokens(after=last, age=timedelta(seconds=age), limit=batch)
            )
            assert row is not None
            dropped += int(row["dropped"])
            last = row["next"]
        return dropped

    async def mail_token(self, db: Db, message_id: UUID) -> int | None:
        """The token of a failed mail that must be rendered again; None for any other mail."""
        found: int | None = await db.fetchval(*self._sql.mail_token(message_id=message_id))
        return found

    async def resend(self, connection: asyncpg.Connection, token: int) -> ResentToken:
        """Collect a token again, or issue a new one if it has expired; NotPossible says why not."""
        row = await connection.fetchrow(*self._sql.resend_state(token=token))
        if row is None:
            raise NotFound(f"there is no token {token}: issue a new one with issue_token")
        if row["state"] == "used":
            raise NotPossible(f"token {token} was used: its mail need not be sent again")
        if row["newer"] is not None:
            raise NotPossible(
                f"token {row['newer']} replaced token {token}: its mail is the one to send again"
            )
        if row["state"] == "expired":
            data = None if row["data"] is None else json.loads(row["data"])
            issued = await self.issue(connection, row["account"], row["action"], data)
            return ResentToken(issued, is_new=True)
        await connection.fetch(*self._sql.collect_again(token=token))
        return ResentToken(token, is_new=False)

    async def grant(self, connection: asyncpg.Connection, role: str) -> list[str]:
        """Grant a role the use of accounts and tokens; returns the executed statements."""
        rows = await connection.fetch(*self._sql.grants(role=role))
        statements = [row["statement"] for row in rows]
        for statement in statements:
            await connection.fetch(statement)
        return statements


def _due(row: asyncpg.Record) -> DueToken:
    # By position: by name, this row takes 7 % more CPU per token of `collect --stdout`. A test
    # compares the columns of the statement with the fields.
    values = list(row)
    values[_ACCOUNT_DATA] = _object(values[_ACCOUNT_DATA])
    values[_TOKEN_DATA] = _object(values[_TOKEN_DATA])
    return DueToken(*values)


def _object(text: str | None) -> dict[str, Any]:
    """A JSON object; empty if Python cannot read it.

    PostgreSQL allows longer numbers and deeper lists. A template that needs such data sets its
    token aside; other tokens are not affected.
    """
    if not text:
        return {}
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _account(row: asyncpg.Record | None) -> Account | None:
    if row is None:
        return None
    return Account(**{**row, "data": _object(row["data"])})


@contextmanager
def _refusals() -> Iterator[None]:
    """Map the database's errors about a token to Pillarbox's."""
    try:
        with translated():
            yield
    except StoreDataError as error:
        if error.sqlstate != _INVALID_TEXT:
            raise
        raise InvalidToken("there is no such action") from None
    except asyncpg.PostgresError as error:
        refusal = _REFUSALS.get(error.sqlstate or "")
        if refusal is None:
            raise
        raise refusal(error.message) from None
