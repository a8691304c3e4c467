"""Connects the SMTP server to the Authenticator and the Intake."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from pillarbox.accept.checks import MAX_LINE_OCTETS, OVERHEAD_OCTETS, check_recipient, check_sender
from pillarbox.accept.mail import Mail
from pillarbox.accept.smtp.refusals import refuse_mail
from pillarbox.accept.smtp.replies import reply
from pillarbox.errors import InvalidMail, PillarboxError
from pillarbox.model import access
from pillarbox.model.access import Principal, Scope, require
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    from uuid import UUID

    from pillarbox.accept.auth import Authenticator
    from pillarbox.accept.intake import Intake
    from pillarbox.accept.smtp.actions import SubmittedMail
    from pillarbox.accept.smtp.rules import SessionLimits, SessionPolicy
    from pillarbox.model.secret import Secret

log = logs.get("pillarbox.smtp")
# Seconds after which the principal is looked up again before the next mail: a revoked login ends
# this soon within a session.
FRESH = 1.0
_NO_RECIPIENT = reply(550, "5.7.1", "the login may not send to this domain")
_NO_SENDER = reply(
    550, "5.7.1", "the null sender is for bounces, which are not submitted: name a sender"
)


class PrincipalPolicy:
    """What a principal may send: a tenant's login, or any local client in development."""

    def __init__(
        self, principal: Principal, limits: SessionLimits, renew: Callable[[], Awaitable[Principal]]
    ) -> None:
        self._limits = limits
        self._renew = renew
        self._take(principal)

    def _take(self, principal: Principal) -> None:
        tenant = require(principal, Scope.SEND)
        self.principal = principal
        self._as_of = time.monotonic()
        self.max_message = self._limits.message
        if tenant.max_message_bytes is not None:
            # A tenant's limit includes what is counted for the subject and the overhead.
            counted = OVERHEAD_OCTETS + MAX_LINE_OCTETS
            self.max_message = max(1, tenant.max_message_bytes - counted)
        self.max_recipients = tenant.max_recipients or self._limits.recipients

    async def refresh(self) -> Principal:
        """The principal, looked up again if it is older than `FRESH`."""
        if time.monotonic() - self._as_of > FRESH:
            self._take(await self._renew())
        return self.principal

    def refuse_sender(self, address: str) -> bytes | None:
        if not address:
            return _NO_SENDER
        try:
            check_sender(address)
            access.check_sender(self.principal, address)
        except PillarboxError as error:
            return refuse_mail(error)
        return None

    def refuse_recipient(self, address: str) -> bytes | None:
        try:
            check_recipient(address)
        except InvalidMail as error:
            return refuse_mail(error)
        domains = self.principal.recipient_domains
        if domains and not access.matches(access.domain_of(address), domains):
            return _NO_RECIPIENT
        return None


class SubmissionHandler:
    """The MailHandler of this installation."""

    def __init__(
        self, authenticator: Authenticator, intake: Intake, limits: SessionLimits, name: str
    ) -> None:
        self._authenticator = authenticator
        self._intake = intake
        self._limits = limits
        self._name = name
        self._accepted_unknown = False  # logged once: applications log in for each mail

    async def development(self) -> PrincipalPolicy:
        """The policy of local clients without a login; Unauthorized except in development."""
        find = self._authenticator.development
        return PrincipalPolicy(await find(), self._limits, find)

    async def log_in(self, username: str, password: Secret, peer: str) -> PrincipalPolicy:
        async def find() -> Principal:
            return await self._authenticator.by_login(username, password.reveal(), peer)

        return PrincipalPolicy(await find(), self._limits, find)

    async def log_in_to_development(
        self, username: str, password: Secret, peer: str
    ) -> PrincipalPolicy:
        """A known login selects its tenant and needs its password; any other login is accepted.

        A known user name with a wrong password is refused: its mail would silently belong to
        another tenant.
        """
        if await self._authenticator.knows_login(username):
            return await self.log_in(username, password, peer)
        policy = await self.development()
        if not self._accepted_unknown:
            self._accepted_unknown = True
            log.info(
                "an unknown login was accepted, as all logins are in development",
                tenant="default",
            )
        return policy

    async def submit(self, policy: SessionPolicy, submitted: SubmittedMail, peer: str) -> UUID:
        """Store the mail; returns its id once it is committed."""
        principal = await cast(PrincipalPolicy, policy).refresh()
        mail = Mail(
            sender=submitted.sender,
            to=submitted.recipients,
            raw=submitted.content,
        )
        received = received_value(submitted, peer, self._name, int(time.time()))
        receipt = await self._intake.accept(principal, mail, received=received, source="smtp")
        return receipt.id


def received_value(submitted: SubmittedMail, peer: str, name: str, second: int) -> str:
    """The value of Received (RFC 5321 4.4), without recipients: it would reveal blind copies."""
    literal = peer
    if ":" in peer:
        literal = f"IPv6:{peer.partition('%')[0]}"
    client = f"{submitted.greeted_as} ([{literal}])"
    return f"from {client} by {name} with {submitted.protocol}; {_date(second)}"


@lru_cache(maxsize=4)
def _date(second: int) -> str:
    """The date; most mails have the same as the previous one."""
    return formatdate(second)
