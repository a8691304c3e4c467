"""Errors as replies: what a client hears when a login or a mail is not taken."""

from __future__ import annotations

from pillarbox.accept.smtp import replies
from pillarbox.accept.smtp.replies import reply
from pillarbox.errors import InvalidMail, NotAllowed, StoreError, Throttled, Unauthorized
from pillarbox.telemetry import logs

log = logs.get("pillarbox.smtp")

# What the codes of InvalidMail mean in SMTP; all others are a fault of the mail as such.
_CODES = {
    "too_big": replies.TOO_BIG,
    "too_large": replies.TOO_BIG,
    "recipient_count": replies.TOO_MANY_RECIPIENTS,
    "too_many": replies.TOO_MANY_RECIPIENTS,
}


def refuse_login(error: Exception) -> bytes:
    """The reply to AUTH when the authenticator raised this."""
    if isinstance(error, Unauthorized):
        return replies.BAD_CREDENTIALS
    if isinstance(error, Throttled):
        return reply(
            454, "4.7.0", f"too many failed logins; try again in {error.retry_after:.0f} s"
        )
    if isinstance(error, StoreError):
        return reply(454, "4.3.0", "logins cannot be checked now; try again later")
    if isinstance(error, NotAllowed):
        return reply(535, "5.7.8", error.message)
    log.error("a login failed because of an internal error", exc=error)
    return reply(454, "4.3.0", "internal error; try again later")


def refuse_mail(error: Exception) -> bytes:
    """The reply to MAIL, RCPT or a whole mail when it was not taken."""
    if isinstance(error, InvalidMail):
        return _CODES.get(error.code) or _refuse_invalid(error)
    if isinstance(error, NotAllowed):
        return reply(550, "5.7.1", error.message)
    if isinstance(error, StoreError):
        return reply(451, "4.3.0", "the mail cannot be stored now; try again later")
    if isinstance(
        error, Unauthorized | Throttled
    ):  # while the session lasted, somebody took the login back
        return reply(421, "4.7.0", "the login is no longer valid")
    log.error("a mail was not stored because of an internal error", exc=error)
    return replies.FAULT


def _refuse_invalid(error: InvalidMail) -> bytes:
    if error.field == "sender":
        return reply(553, "5.1.7", error.message)
    if error.field == "to":
        return reply(553, "5.1.3", error.message)
    return reply(554, "5.6.0", error.message)
