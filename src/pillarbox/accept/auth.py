"""Authenticates HTTP and SMTP clients by API keys, SMTP logins and administrators' sessions.

Nothing is cached: every look-up queries the database, with one statement for many callers, so
that a revoked secret is refused at once. After too many failures a client is refused without a
query, unless its secret was valid before: strangers behind the same address, or strangers who
know a key's prefix, lock no valid client out. All processes count failures together: a process
reads the shared counts with each failure that it records.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from pillarbox.accept.shared_failures import FailureKey, SharedFailures
from pillarbox.batching import Batcher
from pillarbox.errors import PillarboxError, Throttled, Unauthorized
from pillarbox.model.access import Principal
from pillarbox.model.throttle import Failures
from pillarbox.store import access, admins
from pillarbox.store.database import Database
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry.metrics import Metrics

# Many clients share a network or a proxy, so an address may fail this many times more often than
# one name at that address.
PEER_FACTOR = 10
# Valid secrets: more than a busy installation has in use, at some 150 bytes each.
REMEMBERED = 10_000
# Seconds: the precision of `last_used_at`. A finer one would be a write per request.
NOTE_INTERVAL = 60.0
# How an error names the secret, where it is not named like its kind.
_SECRET_NAMES = {"login": "user name or password", "password": "address or password"}


@dataclass(frozen=True, slots=True)
class _LoginAttempt:
    """One attempt to authenticate."""

    peer: str  # an address, or its /64 network
    name: str  # the claimed identity: a key's prefix, a user name, an address
    digest: bytes  # of the secret
    given: Any  # the argument of the store's look-up

    def by_name(self, kind: str) -> FailureKey:
        return (kind, self.peer, self.name)

    def by_peer(self) -> FailureKey:
        return (self.peer,)


class Authenticator:
    """Finds the principal of a request. One per process: callers share statements and counts."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        *,
        failures: int,
        shared: SharedFailures | None = None,
        development: bool = False,
        clock: Callable[[], float] = time.monotonic,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._shared = shared
        self._development = development
        self._clock = clock
        self._supervisor = supervisor or Supervisor(metrics)
        self._by_name = Failures(failures)
        self._by_peer = Failures(failures * PEER_FACTOR)
        self._valid: dict[bytes, None] = {}  # least recently used first
        self._noted: dict[tuple[str, int], float] = {}
        self._notes: set[asyncio.Task[None]] = set()
        self._keys = Batcher(partial(self._look_up, "key", access.find_keys))
        self._logins = Batcher(partial(self._look_up, "login", access.find_logins))
        self._sessions = Batcher(partial(self._look_up, "session", admins.find_sessions))
        self._tenants: Batcher[None, Principal] = Batcher(self._default_tenant)
        self._used_keys = Batcher(partial(self._note, access.note_keys))
        self._used_logins = Batcher(partial(self._note, access.note_logins))

    async def by_key(self, token: str, peer: str) -> Principal:
        """The principal of an API key; raises Unauthorized, Throttled or StoreError."""
        prefix = access.prefix_of(token)
        return await self._enter("key", self._keys, peer, prefix, token, token)

    async def by_login(self, username: str, password: str, peer: str) -> Principal:
        """The principal of an SMTP login; raises Unauthorized, Throttled or StoreError."""
        name = username if access.is_login(username, password) else None
        return await self._enter("login", self._logins, peer, name, password, (username, password))

    async def knows_login(self, username: str) -> bool:
        """Whether a login ever had this user name, revoked ones included.

        Only for development: the answer tells strangers which names exist.
        """
        return access.is_username(username) and await access.has_login(self._database, username)

    async def by_session(self, token: str, peer: str) -> Principal:
        """The administrator of a session; raises Unauthorized, Throttled or StoreError."""
        name = access.digest(token).hex() if admins.is_session(token) else None
        return await self._enter("session", self._sessions, peer, name, token, token)

    def throttle(self, kind: str, peer: str, name: str) -> None:
        """Raise Throttled after too many failures; for callers that look secrets up themselves."""
        if refusal := self._refusal(kind, _LoginAttempt(network_of(peer), name, b"", None)):
            raise refusal

    async def refuse(self, kind: str, peer: str, name: str) -> Unauthorized | Throttled:
        """Count a failure; returns the error to raise."""
        attempt = _LoginAttempt(network_of(peer), name, b"", None)
        error = self._fail(kind, attempt)
        return await self._share(kind, attempt) or error

    def admit(self, kind: str) -> None:
        """Count a success."""
        self._metrics.authentications.labels(kind, "accepted").inc()

    async def development(self) -> Principal:
        """The principal of a loopback client without a key; Unauthorized except in development."""
        if not self._development:
            raise Unauthorized("a key is needed: make one with `pillarbox key add`")
        return await self._tenants.submit(None)

    async def close(self) -> None:
        """Wait until the last uses are written."""
        await asyncio.gather(*self._notes, return_exceptions=True)

    async def _enter(
        self,
        kind: str,
        look_up: Batcher[_LoginAttempt, Principal],
        peer: str,
        name: str | None,
        secret: str,
        given: Any,
    ) -> Principal:
        peer = network_of(peer)
        if name is None:  # not the form of any secret that Pillarbox generates
            attempt = _LoginAttempt(peer, "", b"", given)
            raise self._refusal(kind, attempt) or self._fail(kind, attempt)
        attempt = _LoginAttempt(peer, name, access.digest(secret), given)
        if refusal := self._refusal(kind, attempt):
            raise refusal
        try:
            return await look_up.submit(attempt)
        except Unauthorized as error:
            raise await self._share(kind, attempt) or error from None

    async def _share(self, kind: str, attempt: _LoginAttempt) -> Throttled | None:
        """Count a failure for all processes and read their counts; an error above the limit."""
        if self._shared is None:
            return None
        counted = await self._shared.add(attempt.by_name(kind), attempt.by_peer())
        now = self._clock()
        is_over = False
        kept = ((self._by_name, attempt.by_name(kind)), (self._by_peer, attempt.by_peer()))
        # `counted` is empty while the database is unavailable.
        for (failures, key), found in zip(kept, counted, strict=False):
            failures.learn(key, now, found.failures, found.age)
            is_over = is_over or found.failures > failures.limit
        if not is_over:
            return None
        return self._refusal(kind, attempt)

    async def _look_up(
        self,
        kind: str,
        find: Callable[[Database, Sequence[Any]], Awaitable[list[Principal | None]]],
        attempts: list[_LoginAttempt],
    ) -> Sequence[Principal | PillarboxError]:
        """Look up many attempts with one statement, except those that are throttled by now."""
        refusals = [self._refusal(kind, attempt) for attempt in attempts]
        pairs = list(zip(attempts, refusals, strict=True))
        secrets = [attempt.given for attempt, refusal in pairs if refusal is None]
        found = iter(await find(self._database, secrets) if secrets else ())
        return [refusal or self._judge(kind, attempt, next(found)) for attempt, refusal in pairs]

    def _judge(
        self, kind: str, attempt: _LoginAttempt, found: Principal | None
    ) -> Principal | PillarboxError:
        if found is None:
            self._valid.pop(attempt.digest, None)
            return self._fail(kind, attempt)
        self.admit(kind)
        _keep_newest(self._valid, attempt.digest, None)
        self._use(found)
        return found

    def _fail(self, kind: str, attempt: _LoginAttempt) -> Unauthorized:
        now = self._clock()
        self._by_name.add(attempt.by_name(kind), now)
        self._by_peer.add(attempt.by_peer(), now)
        self._metrics.authentications.labels(kind, "refused").inc()
        return Unauthorized(f"the {_SECRET_NAMES.get(kind, kind)} is not valid")

    def _refusal(self, kind: str, attempt: _LoginAttempt) -> Throttled | None:
        """An error after too many failures, unless the secret was valid before."""
        now = self._clock()
        seconds = max(
            self._by_name.wait(attempt.by_name(kind), now),
            self._by_peer.wait(attempt.by_peer(), now),
        )
        if not seconds or attempt.digest in self._valid:
            return None
        self._metrics.authentications.labels(kind, "throttled").inc()
        return Throttled("too many failures from your address", seconds)

    async def _default_tenant(self, callers: list[None]) -> Sequence[Principal]:
        return [await access.development_principal(self._database)] * len(callers)

    def _use(self, principal: Principal) -> None:
        """Note the use of a key or login in the background; sessions already have a start time."""
        if principal.kind == "session":
            return
        assert principal.id is not None
        key = (principal.kind, principal.id)
        now = self._clock()
        if now - self._noted.get(key, -NOTE_INTERVAL) < NOTE_INTERVAL:
            return
        _keep_newest(self._noted, key, now)
        batcher = self._used_keys if principal.kind == "key" else self._used_logins
        task = asyncio.create_task(batcher.submit(principal.id))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
        # An error loses one note; the next use is noted.
        self._supervisor.watch("note use", task)

    async def _note(
        self, write: Callable[[Database, Sequence[int]], Awaitable[None]], ids: list[int]
    ) -> Sequence[None]:
        await write(self._database, ids)
        return [None] * len(ids)


def _keep_newest(kept: dict[Any, Any], key: Hashable, value: Any) -> None:
    """Put an entry last, and drop the first above the limit."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > REMEMBERED:
        del kept[next(iter(kept))]


@lru_cache(maxsize=1024)
def network_of(peer: str) -> str:
    """The key of failure counts: an IPv4 address, or the /64 network of one IPv6 customer."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
