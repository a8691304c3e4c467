"""Accounts and tokens of one lifecycle schema: what the collector takes and settles, and what a link or code does."""

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
# Released in one statement: others wait for its locks no longer than a moment.
RELEASED = 1000
# Older tokens that a new one looks at: each of them did the same, so that only mails of the last
# few can still wait.
OLDER = 50

# SQLSTATE of a text that is not of its type: here, the name of an action that does not exist.
_INVALID_TEXT = "22P02"
_REFUSALS: dict[str, Callable[[str], InvalidToken]] = {
    "PB404": InvalidToken,
    "PB410": UsedToken,
    "PB411": ExpiredToken,
    "PB412": SupersededToken,
    "PB413": lambda message: WrongCode(message, void=True),
}


class DueToken(NamedTuple):
    """A token that was taken, with its account and what its action says.

    `verdict` None: to be mailed; `expired`, `consumed`, `superseded`, `gone`: settle it so; `account`: hold it, for its
    account is not eligible now. Of one that is `gone` only `token`, `lane` and `verdict` mean anything.
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


class TokenCounts(NamedTuple):
    """How many tokens could be taken now, and how many of them are urgent; both counted up to a limit only."""

    ready: int
    urgent: int


class SetAsideToken(NamedTuple):
    """A token that could not be rendered or stored; `problem` says why, without anything personal."""

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
    """The token that is collected once more; `is_new`: it was issued in the place of one that had expired."""

    token: int
    is_new: bool


class TokenState(NamedTuple):
    """What using a token would come to: `good`, `used`, `expired`, `superseded` or `void` (too many wrong codes)."""

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
    """What is known of an action; `path` None: its mails have no link."""

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

    async def count(self, db: Db, most: int) -> TokenCounts:
        """How many could be taken now, counted up to `most`: cheap, however many there are."""
        row = await db.fetchrow(self._sql["count"], most)
        assert row is not None
        return TokenCounts(*row)

    async def take(
        self, connection: asyncpg.Connection, limit: int, *, urgent_only: bool = False
    ) -> list[DueToken]:
        """Take up to `limit` tokens until the end of the caller's transaction; others pass them over.

        Urgent ones first, then by id. Each must be settled or held in the same transaction, or it
        comes again.
        """
        rows = await connection.fetch(self._sql["take"], limit, URGENT if urgent_only else BULK)
        return [_due(row) for row in rows]

    async def settle(
        self,
        connection: asyncpg.Connection,
        outcomes: Sequence[tuple[int, str, UUID | None]],
        queue: str = "mailroom",
    ) -> None:
        """End tokens that were taken: (token, outcome, its mail). The row `queue` of `jobs` shows the progress.

        Outcomes: `mailed`, `written`, `paused`, `expired`, `consumed`, `superseded`, `gone`.
        """
        if outcomes:
            await connection.fetch(self._sql["settle"], *zip(*outcomes, strict=True), queue)

    async def hold(
        self, connection: asyncpg.Connection, held: Sequence[tuple[int, str, str | None, float]]
    ) -> None:
        """Put taken tokens by: (token, `account` or `rendering`, problem, seconds).

        `rendering`: set aside, and tried again after the seconds. `account`: until its account's status changes or the
        token expires, and now and then it is looked at again; problem and seconds mean nothing then.
        """
        if held:
            await connection.fetch(self._sql["hold"], *zip(*held, strict=True))

    async def release_due(self, db: Db) -> int:
        """Let tokens be taken again whose time of being held has passed; returns how many, at most RELEASED."""
        return int(await db.fetchval(self._sql["release_due"], RELEASED))

    async def supersede(self, connection: asyncpg.Connection, tokens: Sequence[int]) -> int:
        """Cancel what is still to be sent for older tokens of the same account and action; returns how many deliveries.

        Call it in the transaction that took `tokens`, before settling. It waits for collectors that
        have older ones in hand; should two wait for each other, PostgreSQL ends one transaction
        (DeadlockDetectedError): try again.
        """
        if not tokens:
            return 0
        await connection.fetch(self._sql["await_older"], tokens, OLDER)
        rows = await connection.fetch(self._sql["supersede"], tokens, OLDER)
        if rows:
            mails = list({row["message_id"] for row in rows})
            await connection.fetch(messages.QUERIES["drop_secret_contents"], mails)
        return len(rows)

    async def set_aside(self, db: Db, limit: int = LISTED, after: int = 0) -> list[SetAsideToken]:
        """Tokens that could not be rendered or stored, oldest first; continue after the last one with `after`."""
        return [SetAsideToken(*row) for row in await db.fetch(self._sql["set_aside"], limit, after)]

    async def count_set_aside(self, db: Db, most: int) -> int:
        """How many are set aside, counted up to `most`."""
        return int(await db.fetchval(self._sql["count_set_aside"], most))

    async def retry_set_aside(self, db: Db, tokens: Sequence[int] | None = None) -> int:
        """Let set-aside tokens (None: all) be taken again at once, and tell the collectors; returns how many."""
        return int(await db.fetchval(self._sql["retry_set_aside"], tokens))

    async def consume(
        self, db: Db, secret: bytes, action: str, code: str | None = None, tries_allowed: int = 5
    ) -> TokenState:
        """Use a token; returns it as it is then. A wrong code is counted; after so many the token is void.

        UsedToken, ExpiredToken, SupersededToken, WrongCode (`void` after the last try);
        InvalidToken: no such token. Give a Database: a wrong code counts when its statement
        commits.
        """
        with _refusals():
            account = await db.fetchval(self._sql["consume"], secret, action, code, tries_allowed)
        state = await self.look(db, secret, action, tries_allowed)
        if state is None:  # its account was deleted in between
            raise InvalidToken("there is no such token")
        if account is None:
            raise WrongCode("the code is wrong", void=state.state == "void")
        return state

    async def reserve(self, db: Db, secret: bytes, action: str, seconds: float) -> bool:
        """Keep a token for so long, so that nobody else uses it meanwhile; false if it was used, or somebody has it."""
        lasts = timedelta(seconds=seconds)
        return await db.fetchval(self._sql["reserve"], secret, action, lasts) is not None

    async def let_go(self, db: Db, secret: bytes, action: str) -> None:
        """End what `reserve` began."""
        await db.execute(self._sql["let_go"], secret, action)

    async def look(
        self, db: Db, secret: bytes, action: str, tries_allowed: int = 5
    ) -> TokenState | None:
        """What using a token would come to; changes nothing. None: there is no such token."""
        row = await db.fetchrow(self._sql["look"], secret, action, tries_allowed)
        return TokenState(*row) if row else None

    async def find_account(self, db: Db, email: str) -> Account | None:
        """The account with this address, whatever its capitals; of several, the one that is written the same."""
        return _account(await db.fetchrow(self._sql["find_account"], email))

    async def account(self, db: Db, number: int) -> Account | None:
        return _account(await db.fetchrow(self._sql["account"], number))

    async def paused_account(self, db: Db, token: int) -> int | None:
        """The account of a sign-in token that got no code of its own because of the pause; None for any other."""
        found: int | None = await db.fetchval(self._sql["paused_account"], token)
        return found

    async def actions(self, db: Db) -> list[TokenAction]:
        """Every action, by number."""
        return [TokenAction(*row) for row in await db.fetch(self._sql["actions"])]

    async def register_templates(self, db: Db, names: Sequence[str]) -> int:
        """Let these templates (`hub/welcome`) be those there are; returns how many came or went."""
        pairs = [name.partition("/") for name in names]
        portals, kinds = [portal for portal, _, _ in pairs], [kind for _, _, kind in pairs]
        return int(await db.fetchval(self._sql["register_templates"], portals, kinds))

    async def issue(
        self, db: Db, account: int, action: str, data: dict[str, Any] | None = None
    ) -> int:
        """A new token of an account, which lives as long as its action says; returns its id.

        NotFound: there is no such account, action, portal or template. InvalidMail: its address is
        not a legal one.
        """
        text = json.dumps(data) if data is not None else None
        try:
            with translated():
                return int(await db.fetchval(self._sql["issue"], account, action, text))
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
        """Delete tokens that were used or expired `age` seconds ago, `batch` rows at a time; returns how many."""
        dropped = 0
        last: int | None = 0
        while last is not None:
            row = await db.fetchrow(self._sql["purge_tokens"], last, timedelta(seconds=age), batch)
            assert row is not None
            dropped += int(row["dropped"])
            last = row["next"]
        return dropped

    async def mail_token(self, db: Db, message_id: UUID) -> int | None:
        """The token that a failed mail, which cannot be sent again as it is, is to be rendered again from."""
        found: int | None = await db.fetchval(self._sql["mail_token"], message_id)
        return found

    async def resend(self, connection: asyncpg.Connection, token: int) -> ResentToken:
        """Let a token be collected once more; one that has expired is issued anew. NotPossible: why it cannot be."""
        row = await connection.fetchrow(self._sql["resend_state"], token)
        if row is None:
            raise NotFound(f"there is no token {token}: issue a new one with issue_token")
        if row["state"] == "used":
            raise NotPossible(f"token {token} was used: its mail need not be sent again")
        if row["newer"] is not None:
            raise NotPossible(
                f"token {row['newer']} took the place of token {token}: its mail is the one to send again"
            )
        if row["state"] == "expired":
            data = None if row["data"] is None else json.loads(row["data"])
            return ResentToken(
                await self.issue(connection, row["account"], row["action"], data), is_new=True
            )
        await connection.fetch(self._sql["collect_again"], token)
        return ResentToken(token, is_new=False)

    async def grant(self, connection: asyncpg.Connection, role: str) -> list[str]:
        """Let a role keep accounts, issue tokens and use them; returns the statements carried out."""
        statements = [row["statement"] for row in await connection.fetch(self._sql["grants"], role)]
        for statement in statements:
            await connection.fetch(statement)
        return statements


def _due(row: asyncpg.Record) -> DueToken:
    values = list(row)
    values[17:19] = _object(values[17]), _object(values[18])
    return DueToken(*values)


def _object(text: str | None) -> dict[str, Any]:
    try:
        return dict(json.loads(text)) if text else {}
    except (
        ValueError,
        RecursionError,
    ):  # PostgreSQL has longer numbers and deeper lists than Python reads
        return {}  # a template that asks for them sets its token aside; nobody else is held up


def _account(row: asyncpg.Record | None) -> Account | None:
    if row is None:
        return None
    return Account(**{**row, "data": _object(row["data"])})


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what the database says of a token into errors of ours."""
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
