"""Who asks: keys, logins, administrators' sessions, and the keyless door of development.

Nothing is cached: every look-up asks the database, many callers with one statement, so that what is
revoked is refused at once. Whoever fails too often waits without the database being asked. What was
right before is asked about even so: strangers behind the same address, or who know a key's prefix,
lock nobody out. Failures are counted by all processes together: a process learns what the others
have counted with each failure of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from pillarbox.accept.shared_failures import Place, SharedFailures
from pillarbox.batching import Batcher
from pillarbox.errors import PillarboxError, Throttled, Unauthorized
from pillarbox.model.access import Principal
from pillarbox.model.throttle import Failures
from pillarbox.store import access, admins
from pillarbox.store.database import Database
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry.metrics import Metrics

# A network or a proxy holds many clients, so an address may fail so many times more often than a
# name from there.
PEER_FACTOR = 10
# Secrets that were right: more than a busy installation has in use, at some 150 octets each.
REMEMBERED = 10_000
# How exactly last use is known. More would be a write per request.
NOTE_INTERVAL = 60.0
# What was not valid; all other kinds are called what they are.
_WORDS = {"login": "user name or password", "password": "address or password"}


@dataclass(frozen=True, slots=True)
class _Try:
    """One try to get in."""

    peer: str  # an address, or the network of one
    name: str  # whose secret it claims to be: a key's prefix, a user name, an address
    digest: bytes  # of the secret
    given: Any  # as the store wants it

    def by_name(self, kind: str) -> Place:
        return (kind, self.peer, self.name)

    def by_peer(self) -> Place:
        return (self.peer,)


class Doorkeeper:
    """Tells who asks; one per process, so that callers share statements and failures are counted together."""

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
        self._right: dict[bytes, None] = {}  # least recently right first
        self._noted: dict[tuple[str, int], float] = {}
        self._notes: set[asyncio.Task[None]] = set()
        self._keys = Batcher(partial(self._look_up, "key", access.find_keys))
        self._logins = Batcher(partial(self._look_up, "login", access.find_logins))
        self._sessions = Batcher(partial(self._look_up, "session", admins.find_sessions))
        self._tenants: Batcher[None, Principal] = Batcher(self._default_tenant)
        self._used_keys = Batcher(partial(self._note, access.note_keys))
        self._used_logins = Batcher(partial(self._note, access.note_logins))

    async def by_key(self, token: str, peer: str) -> Principal:
        """Whose key this is; raises Unauthorized, Throttled or StoreError."""
        prefix = access.prefix_of(token)
        return await self._enter("key", self._keys, peer, prefix, token, token)

    async def by_login(self, username: str, password: str, peer: str) -> Principal:
        """Whose login this is; raises Unauthorized, Throttled or StoreError."""
        name = username if access.is_login(username, password) else None
        return await self._enter("login", self._logins, peer, name, password, (username, password))

    async def knows_login(self, username: str) -> bool:
        """Whether a login ever had this user name, in force or not. For development: it tells strangers who exists."""
        return access.is_username(username) and await access.has_login(self._database, username)

    async def by_session(self, token: str, peer: str) -> Principal:
        """Which administrator's session this is; raises Unauthorized, Throttled or StoreError."""
        name = access.digest(token).hex() if admins.is_session(token) else None
        return await self._enter("session", self._sessions, peer, name, token, token)

    def throttle(self, kind: str, peer: str, name: str) -> None:
        """Raise Throttled if there were too many failures from there; for doors that look up for themselves."""
        if refusal := self._refusal(kind, _Try(network_of(peer), name, b"", None)):
            raise refusal

    async def refuse(self, kind: str, peer: str, name: str) -> Unauthorized | Throttled:
        """Count a failure; returns what to raise."""
        one = _Try(network_of(peer), name, b"", None)
        error = self._fail(kind, one)
        return await self._share(kind, one) or error

    def admit(self, kind: str) -> None:
        """Count somebody who was right."""
        self._metrics.authentications.labels(kind, "accepted").inc()

    async def development(self) -> Principal:
        """Whoever comes without a key, on loopback; Unauthorized where this is no installation for development."""
        if not self._development:
            raise Unauthorized("a key is needed: make one with `pillarbox key add`")
        return await self._tenants.ask(None)

    async def close(self) -> None:
        """Wait until the last uses are noted."""
        await asyncio.gather(*self._notes, return_exceptions=True)

    async def _enter(
        self,
        kind: str,
        door: Batcher[_Try, Principal],
        peer: str,
        name: str | None,
        secret: str,
        given: Any,
    ) -> Principal:
        peer = network_of(peer)
        if name is None:  # nothing that we ever handed out looks like this
            one = _Try(peer, "", b"", given)
            raise self._refusal(kind, one) or self._fail(kind, one)
        one = _Try(peer, name, access.digest(secret), given)
        if refusal := self._refusal(kind, one):
            raise refusal
        try:
            return await door.ask(one)
        except Unauthorized as error:
            raise await self._share(kind, one) or error from None

    async def _share(self, kind: str, one: _Try) -> Throttled | None:
        """Count a failure for all processes and learn what they have counted; an error if that is too much."""
        if self._shared is None:
            return None
        counted = await self._shared.add(one.by_name(kind), one.by_peer())
        now, is_over = self._clock(), False
        kept = ((self._by_name, one.by_name(kind)), (self._by_peer, one.by_peer()))
        for (failures, place), found in zip(
            kept, counted, strict=False
        ):  # nothing is found without the database
            failures.learn(place, now, found.failures, found.age)
            is_over = is_over or found.failures > failures.most
        return self._refusal(kind, one) if is_over else None

    async def _look_up(
        self,
        kind: str,
        find: Callable[[Database, Sequence[Any]], Awaitable[list[Principal | None]]],
        tries: list[_Try],
    ) -> Sequence[Principal | PillarboxError]:
        """Judge many tries with one statement; those that failed too often while they waited are not asked about."""
        refusals = [self._refusal(kind, one) for one in tries]
        asked = [one.given for one, refusal in zip(tries, refusals, strict=True) if refusal is None]
        found = iter(await find(self._database, asked) if asked else ())
        return [
            refusal or self._judge(kind, one, next(found)) for one, refusal in zip(tries, refusals, strict=True)
        ]  # fmt: skip

    def _judge(self, kind: str, one: _Try, found: Principal | None) -> Principal | PillarboxError:
        if found is None:
            self._right.pop(one.digest, None)
            return self._fail(kind, one)
        self.admit(kind)
        _keep_newest(self._right, one.digest, None)
        self._use(found)
        return found

    def _fail(self, kind: str, one: _Try) -> Unauthorized:
        now = self._clock()
        self._by_name.add(one.by_name(kind), now)
        self._by_peer.add(one.by_peer(), now)
        self._metrics.authentications.labels(kind, "refused").inc()
        return Unauthorized(f"the {_WORDS.get(kind, kind)} is not valid")

    def _refusal(self, kind: str, one: _Try) -> Throttled | None:
        """An error if there were too many failures from there; what was right before is let through."""
        now = self._clock()
        seconds = max(
            self._by_name.wait(one.by_name(kind), now), self._by_peer.wait(one.by_peer(), now)
        )
        if not seconds or one.digest in self._right:
            return None
        self._metrics.authentications.labels(kind, "throttled").inc()
        return Throttled("too many failures from your address", seconds)

    async def _default_tenant(self, asked: list[None]) -> Sequence[Principal]:
        return [await access.development_principal(self._database)] * len(asked)

    def _use(self, principal: Principal) -> None:
        """Have the use of a key or login noted, beside the request; when a session began is known anyway."""
        if principal.kind == "session":
            return
        assert principal.id is not None
        key, now = (principal.kind, principal.id), self._clock()
        if now - self._noted.get(key, -NOTE_INTERVAL) < NOTE_INTERVAL:
            return
        _keep_newest(self._noted, key, now)
        batcher = self._used_keys if principal.kind == "key" else self._used_logins
        task = asyncio.create_task(batcher.ask(principal.id))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
        self._supervisor.watch(
            "note use", task
        )  # an error costs one note: the next use is noted, too

    async def _note(
        self, write: Callable[[Database, Sequence[int]], Awaitable[None]], ids: list[int]
    ) -> Sequence[None]:
        await write(self._database, ids)
        return [None] * len(ids)


def _keep_newest(kept: dict[Any, Any], key: Hashable, value: Any) -> None:
    """Put an entry last, and drop the first when there are too many."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > REMEMBERED:
        del kept[next(iter(kept))]


@lru_cache(maxsize=1024)
def network_of(peer: str) -> str:
    """What failures are counted by: an IPv4 address, or the /64 that one IPv6 customer has."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
