"""Every error Pillarbox raises on purpose.

PillarboxError ├── InvalidMail              the mail breaks a rule; says which, in which field, and
what to do │   ├── IdempotencyConflict  the key was used before, for a different mail │   └──
UnknownName          a tenant, class or lane that does not exist ├── SettingsError            a
setting has a wrong name or value ├── StoreError               PostgreSQL cannot carry out a
statement now; it can be made again │   ├── StoreDataError       PostgreSQL cannot hold a value of
the statement; repeating does not help │   ├── StoreBug             the statement itself is wrong:
an error in Pillarbox, or a changed schema │   └── WrongDatabase        PostgreSQL is too old, or
the schema is not Pillarbox's │       └── SchemaMismatch   the schema is older or newer than this
program ├── SecretError              a secret cannot be sealed or opened with the keys at hand ├──
Refused                  whoever asks may not do this │   ├── Unauthorized         no key or
password, or a wrong one │   ├── NotAllowed           the key, login or tenant does not allow it │
├── Throttled            too many failures or requests; says when to come back │   └── Forged
feedback that is not proven to come from its provider ├── NotFound                 nothing with that
name or id ├── NotPossible              the thing exists but its state forbids what was asked ├──
InvalidToken             a link or code does not count; says why │   ├── ForgedToken          it was
not signed with a key of ours for this, or is cut off │   ├── ExpiredToken         it was good, and
came too late │   ├── UsedToken            it was used before │   ├── SupersededToken      a newer
one took its place │   ├── WrongCode            the code is wrong, or was wrong too often │   └──
SuspendedAccount     it is good, but not while its account is suspended ├── PasswordRefused
the application does not take a new password; may say why ├── RenderError              a template
cannot be rendered; says which, where, and what is missing ├── InvalidWebhook           a webhook
call was not signed with the secret, or not lately ├── RefusedAddress           calls to customers
may not go there ├── NoAnswer                 a server cannot be reached, or did not answer as it
should ├── TaskEnded                a background task returned although it was not asked to stop └──
NotStarted               a transport gave a parcel back before sending any of it
"""

from __future__ import annotations


class PillarboxError(Exception):
    """The root: catch this to catch everything Pillarbox raises on purpose."""


class InvalidMail(PillarboxError):
    """The mail breaks a rule. `code` is stable, `field` names the argument, `hint` says what to do."""

    def __init__(self, code: str, field: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{field}: {message}" + (f" ({hint})" if hint else ""))
        self.code = code
        self.field = field
        self.message = message
        self.hint = hint
        self.position: int | None = None  # which of several mails, counted from 0


class IdempotencyConflict(InvalidMail):
    """The idempotency key was used before for a different mail."""


class UnknownName(InvalidMail):
    """The tenant, class or lane named in the mail does not exist."""


class SettingsError(PillarboxError):
    """A setting has a wrong name or value; the text says which and what is allowed."""


class StoreError(PillarboxError):
    """PostgreSQL cannot carry out a statement now. Retryable, except for the subclasses that say otherwise.

    `sqlstate` is PostgreSQL's error code; None if the server did not answer.
    """

    retryable = True

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class StoreDataError(StoreError):
    """PostgreSQL cannot hold a value, or a constraint forbids it. Never contains the value.

    `constraint` is the name of the violated constraint, if there is one.
    """

    retryable = False

    def __init__(
        self, message: str, sqlstate: str | None = None, constraint: str | None = None
    ) -> None:
        super().__init__(message, sqlstate)
        self.constraint = constraint


class StoreBug(StoreError):
    """The statement is wrong (syntax, undefined object): repeating it cannot help."""

    retryable = False


class WrongDatabase(StoreError):
    """PostgreSQL is too old, its address is wrong, or the schema is not Pillarbox's: a person must change something."""

    retryable = False


class SchemaMismatch(WrongDatabase):
    """The schema in the database is older or newer than this program."""


class SecretError(PillarboxError):
    """A secret cannot be sealed or opened with the keys at hand."""


class Refused(PillarboxError):
    """Whoever asks may not do this."""


class Unauthorized(Refused):
    """No key or password was given, or a wrong, expired or revoked one. Never says which."""


class NotAllowed(Refused):
    """The key, login or tenant does not allow it. `field` names what is at fault, `hint` says what to do."""

    def __init__(self, code: str, field: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{field}: {message}" + (f" ({hint})" if hint else ""))
        self.code = code
        self.field = field
        self.message = message
        self.hint = hint
        self.position: int | None = None  # which of several mails, counted from 0


class Throttled(Refused):
    """Too many failures or requests from there; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Forged(Refused):
    """Feedback that is not proven to come from its provider, or comes late. `reason` is one word, for the metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(PillarboxError):
    """Nothing with that name or id."""


class NotPossible(PillarboxError):
    """The thing exists, but its state forbids what was asked."""


class InvalidToken(PillarboxError):
    """A link or code does not count. `reason` is one word, stable."""

    reason = "unknown"


class ForgedToken(InvalidToken):
    """It was not signed with a key of ours for this, was altered, or is cut off."""

    reason = "forged"


class ExpiredToken(InvalidToken):
    """It was good, and came too late."""

    reason = "expired"


class UsedToken(InvalidToken):
    """It was used before: each counts once."""

    reason = "used"


class SupersededToken(InvalidToken):
    """A newer one took its place."""

    reason = "superseded"


class WrongCode(InvalidToken):
    """The code is wrong, or was wrong too often (`void`)."""

    reason = "wrong_code"

    def __init__(self, message: str, *, void: bool = False) -> None:
        super().__init__(message)
        self.void = void


class SuspendedAccount(InvalidToken):
    """It is good, but counts only while its account is not suspended."""

    reason = "suspended"


class PasswordRefused(PillarboxError):
    """The application does not take this password. `detail` is what it says to the person, if anything."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(detail or "the application does not take this password")
        self.detail = detail


class RenderError(PillarboxError):
    """A template cannot be rendered. `template` is its name; `line` of `part` is where; `variable` what is missing."""

    def __init__(
        self,
        template: str,
        message: str,
        *,
        part: str | None = None,
        line: int | None = None,
        variable: str | None = None,
    ) -> None:
        where = f"{template}, {part}" + (f", line {line}" if line else "") if part else template
        super().__init__(f"{where}: {message}")
        self.template = template
        self.message = message
        self.part = part
        self.line = line
        self.variable = variable


class InvalidWebhook(PillarboxError):
    """A webhook call was not signed with the secret, or not lately: pass it over."""


class RefusedAddress(PillarboxError):
    """Calls to customers may not go to this address; the text says why."""


class NoAnswer(PillarboxError):
    """A client got no answer from the server, or none that it understands. What was asked may have been done.

    `status` is that of an answer, 0 without one; `reached` is false if the server cannot have heard of it.
    """

    def __init__(self, message: str, status: int = 0, *, reached: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.reached = reached


class TaskEnded(PillarboxError):
    """A background task returned although it was not asked to stop."""


class NotStarted(PillarboxError):
    """A transport gave a parcel back before sending any of it; it can be released without harm."""
