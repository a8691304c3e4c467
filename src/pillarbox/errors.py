"""The tree of errors that Pillarbox raises on purpose.

PillarboxError
├── InvalidMail             the mail breaks a rule: which rule, which field, what to do
│   ├── IdempotencyConflict the key was used before for a different mail
│   └── UnknownName         the tenant, class or lane does not exist
├── SettingsError           a setting has an unknown name or an invalid value
├── StoreError              PostgreSQL cannot run a statement now; retryable
│   ├── StoreDataError      PostgreSQL cannot store a value; not retryable
│   ├── StoreBug            the statement is wrong: a bug in Pillarbox, or a changed schema
│   └── WrongDatabase       PostgreSQL is too old, or the schema is not Pillarbox's
│       └── SchemaMismatch  the schema is older or newer than this program
├── SecretError             a secret cannot be sealed or opened with the available keys
├── Refused                 the caller is not permitted to do this
│   ├── Unauthorized        the key or password is missing or wrong
│   ├── NotAllowed          the key, login or tenant does not permit it
│   ├── Throttled           too many failures or requests; carries the time to wait
│   └── Forged              feedback without a valid proof that its provider sent it
├── NotFound                nothing exists with that name or id
├── NotPossible             the object exists, but its state forbids the operation
├── InvalidToken            a link or code is not valid; carries the reason
│   ├── ForgedToken         not signed for this purpose with a key of this installation
│   ├── ExpiredToken        its lifetime has ended
│   ├── UsedToken           it was used before
│   ├── SupersededToken     a newer link or code has replaced it
│   ├── WrongCode           the code is wrong, or was wrong too often
│   └── SuspendedAccount    valid, but its account is suspended
├── PasswordRefused         the application refused a new password; may carry the reason
├── RenderError             a template cannot be rendered: which, where, what is missing
├── InvalidWebhook          a webhook call has no valid signature, or is too old
├── RefusedAddress          webhooks may not call this address
├── NoAnswer                a server cannot be reached, or its answer is not usable
├── TaskEnded               a background task returned before it was stopped
└── NotStarted              a transport returned a mail before sending any part of it
"""

from __future__ import annotations


class PillarboxError(Exception):
    """The root: catch this to catch everything Pillarbox raises on purpose."""


class _FieldError(PillarboxError):
    """An error about one field of a mail: a stable `code`, the `field`, a text and a hint."""

    def __init__(self, code: str, field: str, message: str, hint: str | None = None) -> None:
        text = f"{field}: {message}"
        if hint:
            text += f" ({hint})"
        super().__init__(text)
        self.code = code
        self.field = field
        self.message = message
        self.hint = hint
        self.position: int | None = None  # the index of the mail among several


class InvalidMail(_FieldError):
    """The mail breaks a rule. `code` is stable, `field` names the argument, `hint` what to do."""


class IdempotencyConflict(InvalidMail):
    """The idempotency key was used before for a different mail."""


class UnknownName(InvalidMail):
    """The tenant, class or lane named in the mail does not exist."""


class SettingsError(PillarboxError):
    """A setting has an unknown name or an invalid value; the text says what is allowed."""


class StoreError(PillarboxError):
    """PostgreSQL cannot run a statement now. Retryable, except for subclasses that say otherwise.

    `sqlstate` is PostgreSQL's error code; None if the server did not answer.
    """

    retryable = True

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class StoreDataError(StoreError):
    """PostgreSQL cannot store a value, or a constraint forbids it. Never contains the value.

    `constraint` is the name of the violated constraint, if there is one.
    """

    retryable = False

    def __init__(
        self, message: str, sqlstate: str | None = None, constraint: str | None = None
    ) -> None:
        super().__init__(message, sqlstate)
        self.constraint = constraint


class StoreBug(StoreError):
    """The statement is wrong (syntax, undefined object); repeating it cannot succeed."""

    retryable = False


class WrongDatabase(StoreError):
    """PostgreSQL is too old, its address is wrong, or the schema is not Pillarbox's.

    Only an operator can correct this.
    """

    retryable = False


class SchemaMismatch(WrongDatabase):
    """The schema in the database is older or newer than this program."""


class SecretError(PillarboxError):
    """A secret cannot be sealed or opened with the available keys."""


class Refused(PillarboxError):
    """The caller is not permitted to do this."""


class Unauthorized(Refused):
    """The key or password is missing, wrong, expired or revoked. The text never says which."""


class NotAllowed(_FieldError, Refused):
    """The key, login or tenant does not permit it. `field` names the cause, `hint` what to do."""


class Throttled(Refused):
    """Too many failures or requests from this client; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Forged(Refused):
    """Feedback without a valid, recent proof that its provider sent it.

    `reason` is one word, for the metrics.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(PillarboxError):
    """Nothing exists with that name or id."""


class NotPossible(PillarboxError):
    """The object exists, but its state forbids the operation."""


class InvalidToken(PillarboxError):
    """A link or code is not valid. `reason` is one stable word."""

    reason = "unknown"


class ForgedToken(InvalidToken):
    """It was not signed for this purpose with a key of this installation, or was altered."""

    reason = "forged"


class ExpiredToken(InvalidToken):
    """Its lifetime has ended."""

    reason = "expired"


class UsedToken(InvalidToken):
    """It was used before; each works once."""

    reason = "used"


class SupersededToken(InvalidToken):
    """A newer link or code has replaced it."""

    reason = "superseded"


class WrongCode(InvalidToken):
    """The code is wrong, or was wrong too often (`void`)."""

    reason = "wrong_code"

    def __init__(self, message: str, *, void: bool = False) -> None:
        super().__init__(message)
        self.void = void


class SuspendedAccount(InvalidToken):
    """It is valid, but its account is suspended."""

    reason = "suspended"


class PasswordRefused(PillarboxError):
    """The application refused this password. `detail` is its text for the person, if any."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(detail or "the application does not accept this password")
        self.detail = detail


class RenderError(PillarboxError):
    """A template cannot be rendered: `line` of `part` of `template`; `variable` is missing."""

    def __init__(
        self,
        template: str,
        message: str,
        *,
        part: str | None = None,
        line: int | None = None,
        variable: str | None = None,
    ) -> None:
        location = template
        if part:
            location += f", {part}"
            if line:
                location += f", line {line}"
        super().__init__(f"{location}: {message}")
        self.template = template
        self.message = message
        self.part = part
        self.line = line
        self.variable = variable


class InvalidWebhook(PillarboxError):
    """A webhook call has no valid signature, or is too old: ignore it."""


class RefusedAddress(PillarboxError):
    """Webhooks may not call this address; the text says why."""


class NoAnswer(PillarboxError):
    """A client got no usable answer from the server. The request may have been carried out.

    `status` is the HTTP status, 0 without an answer; `reached` is false if the server cannot have
    received the request.
    """

    def __init__(self, message: str, status: int = 0, *, reached: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.reached = reached


class TaskEnded(PillarboxError):
    """A background task returned before it was stopped."""


class NotStarted(PillarboxError):
    """A transport returned a mail before sending any part of it; the claim can be released."""
