"""What SendGrid refuses in a mail, and how it says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pillarbox.testing.twins.addresses import is_address

# https://www.twilio.com/docs/sendgrid/api-reference/mail-send/limitations
MAX_RECIPIENTS = 1000
MAX_CUSTOM_ARGS = 10_000  # bytes
RESERVED_HEADERS = {
    "x-sg-id",
    "x-sg-eid",
    "received",
    "dkim-signature",
    "content-type",
    "content-transfer-encoding",
    "to",
    "from",
    "subject",
    "reply-to",
    "cc",
    "bcc",
}
HELP = "http://sendgrid.com/docs/API_Reference/Web_API_v3/Mail/errors.html#message."
NO_FROM = (
    "The from object must be provided for every email send. It is an object that requires the email parameter,"
    ' but may also contain a name parameter.  e.g. {"email" : "example@example.com"}'
)
NO_SUBJECT = (
    "The subject is required. You can get around this requirement if you use a template with a subject defined"
    " or if every personalization has a subject defined."
)
NO_CONTENT = (
    "Unless a valid template_id is provided, the content parameter is required. There must be at least one defined"
    " content block."
)


@dataclass(frozen=True, slots=True)
class Fault:
    message: str
    field: str | None = None

    def shown(self) -> dict[str, str | None]:
        return {
            "message": self.message,
            "field": self.field,
            "help": f"{HELP}{self.field}" if self.field else None,
        }


def people(personalization: dict[str, Any]) -> Iterator[str]:
    """The addresses of a personalization."""
    for field in ("to", "cc", "bcc"):
        for one in personalization.get(field) or ():
            yield one["email"]


def faults(body: dict[str, Any]) -> list[Fault]:
    """All that is wrong with a mail."""
    return [
        *_personalizations(body),
        *_sender(body),
        *_subject(body),
        *_content(body),
        *_rest(body),
    ]


def _personalizations(body: dict[str, Any]) -> Iterator[Fault]:
    found = body.get("personalizations")
    if not isinstance(found, list) or not found:
        yield Fault(
            "The personalizations field is required and must have at least one personalization.",
            "personalizations",
        )
        return
    count = 0
    for place, one in enumerate(found):
        where = f"personalizations.{place}"
        if not isinstance(one, dict) or not one.get("to"):
            yield Fault("The to array is required for all personalization objects, and must have at least one email"
                        " object with a valid email address.", f"{where}.to")  # fmt: skip
            continue
        wrong = list(_addresses(one, where))
        yield from wrong
        if not wrong:
            yield from _repeated(one, place)
            count += sum(1 for _ in people(one))
    if count > MAX_RECIPIENTS:
        yield Fault(
            f"The total number of recipients must not exceed {MAX_RECIPIENTS}.", "personalizations"
        )


def _addresses(personalization: dict[str, Any], where: str) -> Iterator[Fault]:
    for field in ("to", "cc", "bcc"):
        for place, one in enumerate(personalization.get(field) or ()):
            if not isinstance(one, dict) or not is_address(one.get("email")):
                yield Fault("Does not contain a valid address.", f"{where}.{field}.{place}.email")


def _repeated(personalization: dict[str, Any], place: int) -> Iterator[Fault]:
    seen: set[str] = set()
    for address in people(personalization):
        if address.lower() in seen:
            yield Fault(
                "Each email address in the personalization block should be unique between to, cc, and bcc. We found"
                f" the first duplicate instance of [{address}] in the personalizations.{place} field.",
                "personalizations",
            )
            return
        seen.add(address.lower())


def _sender(body: dict[str, Any]) -> Iterator[Fault]:
    sender = body.get("from")
    if not isinstance(sender, dict) or not sender.get("email"):
        yield Fault(NO_FROM, "from.email")
    elif not is_address(sender["email"]):
        yield Fault("The from email does not contain a valid address.", "from.email")


def _subject(body: dict[str, Any]) -> Iterator[Fault]:
    own = body.get("personalizations")
    everywhere = (
        isinstance(own, list)
        and own
        and all(isinstance(one, dict) and one.get("subject") for one in own)
    )
    if not body.get("subject") and not everywhere and not body.get("template_id"):
        yield Fault(NO_SUBJECT, "subject")


def _content(body: dict[str, Any]) -> Iterator[Fault]:
    content = body.get("content")
    if not isinstance(content, list) or not content:
        if not body.get("template_id"):
            yield Fault(NO_CONTENT, "content")
        return
    types = []
    for place, one in enumerate(content):
        if not isinstance(one, dict) or not isinstance(one.get("type"), str) or not one["type"]:
            yield Fault("The content type is required.", f"content.{place}.type")
        elif not isinstance(one.get("value"), str) or not one["value"]:
            yield Fault(
                "The content value must be a string at least one character in length.",
                f"content.{place}.value",
            )
        else:
            types.append(one["type"].partition(";")[0])
    order = {"text/plain": 0, "text/html": 1}
    if types != sorted(types, key=lambda kind: order.get(kind, 2)):
        yield Fault(
            "If present, text/plain must be first, then text/html, then any other type.", "content"
        )


def _rest(body: dict[str, Any]) -> Iterator[Fault]:
    holders = [
        ("", body),
        *(
            (f"personalizations.{n}.", one)
            for n, one in enumerate(body.get("personalizations") or ())
        ),
    ]
    for where, holder in holders:
        if not isinstance(holder, dict):
            continue
        for name in holder.get("headers") or ():
            if name.lower() in RESERVED_HEADERS:
                yield Fault(
                    f"The header {name} is reserved and can not be set.", f"{where}headers.{name}"
                )
        arguments = holder.get("custom_args") or {}
        if not all(isinstance(value, str) for value in arguments.values()):
            yield Fault("The custom_args values must be strings.", f"{where}custom_args")
        elif sum(len(name) + len(value) for name, value in arguments.items()) > MAX_CUSTOM_ARGS:
            yield Fault("The custom_args total must not exceed 10000 bytes.", f"{where}custom_args")
