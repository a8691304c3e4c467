"""Amazon SES through SNS: notifications of topics that we expect, signed with a certificate of Amazon's.

https://docs.aws.amazon.com/ses/latest/dg/notification-contents.html
https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pillarbox.errors import Forged
from pillarbox.model.outcome import Reason
from pillarbox.telemetry import logs
from pillarbox.track.feedback.base import FeedbackEvent, FeedbackKind, SignedRequest
from pillarbox.track.feedback.event_fields import (
    UNHAPPY,
    check_time,
    id_of,
    message_of,
    part,
    reason_of,
    text_of,
)
from pillarbox.track.feedback.sns import (
    SIGNED,
    SIGNED_CONFIRMATION,
    SnsCertificates,
    check_signature,
    confirm,
)

if TYPE_CHECKING:
    from pillarbox.model.provider import Provider

log = logs.get("pillarbox.feedback")
NOTIFICATION, SUBSCRIPTION, UNSUBSCRIPTION = (
    "Notification",
    "SubscriptionConfirmation",
    "UnsubscribeConfirmation",
)
SIGNED_FIELDS = frozenset(
    (*SIGNED, *SIGNED_CONFIRMATION, "SignatureVersion", "Signature", "SigningCertURL")
)
TYPES = frozenset({NOTIFICATION, SUBSCRIPTION, UNSUBSCRIPTION})

KINDS = {
    "Send": FeedbackKind.ACCEPTED,
    "Delivery": FeedbackKind.DELIVERED,
    "Bounce": FeedbackKind.BOUNCED,
    "Complaint": FeedbackKind.COMPLAINED,
    "DeliveryDelay": FeedbackKind.DEFERRED,
    "Reject": FeedbackKind.DROPPED,
    "Rendering Failure": FeedbackKind.DROPPED,
    "Open": FeedbackKind.OPENED,
    "Click": FeedbackKind.CLICKED,
    "Subscription": FeedbackKind.UNSUBSCRIBED,
}
# Where each says what it is about, and the names of its recipients in there.
DETAILS = {
    "Send": ("send", None),
    "Delivery": ("delivery", "recipients"),
    "Bounce": ("bounce", "bouncedRecipients"),
    "Complaint": ("complaint", "complainedRecipients"),
    "DeliveryDelay": ("deliveryDelay", "delayedRecipients"),
    "Reject": ("reject", None),
    "Rendering Failure": ("failure", None),
    "Open": ("open", None),
    "Click": ("click", None),
    "Subscription": ("subscription", None),
}
SUBTYPES = {
    "NoEmail": Reason.INVALID_RECIPIENT,
    "Suppressed": Reason.SUPPRESSED,
    "OnAccountSuppressionList": Reason.SUPPRESSED,
    "MailboxFull": Reason.MAILBOX_FULL,
    "MessageTooLarge": Reason.TOO_BIG,
    "ContentRejected": Reason.POLICY,
    "AttachmentRejected": Reason.POLICY,
    "SpamDetected": Reason.POLICY,
    "IPFailure": Reason.BLOCKED_SENDER,
}
# What one recipient does; SES does not say which.
BY_ONE = {"Open", "Click", "Subscription"}
# A message has at most so many recipients, and so has what is said of it.
MOST_RECIPIENTS = 100


class SesFeedback:
    """Needs the setting `topics`: the ARNs of the topics that SES publishes to.

    Where `url` says that this is no SES but a twin on this machine, certificates may come from
    there.
    """

    def __init__(self, provider: Provider, window: float) -> None:
        topics = provider.settings.get("topics") or ()
        self._topics = frozenset([topics] if isinstance(topics, str) else topics)
        self._certificates = SnsCertificates(provider.settings.get("url"))
        self._window = window
        self._provider = provider.name

    async def verify(self, posted: SignedRequest, now: float) -> None:
        """The topic comes first: nothing is fetched for strangers."""
        envelope = _envelope(posted.body)
        if not self._topics:
            raise Forged("no_key", "the provider has no topics to take feedback from")
        if envelope.get("Type") not in TYPES:
            raise Forged("unsigned", "this is no message of SNS")
        if envelope.get("TopicArn") not in self._topics:
            raise Forged("topic", "this topic is not expected")
        check_time(_time(envelope.get("Timestamp")), now, self._window)
        check_signature(envelope, await self._certificates.key_of(envelope, now))

    def parse(self, posted: SignedRequest) -> Sequence[FeedbackEvent]:
        envelope = json.loads(posted.body)
        if envelope["Type"] != NOTIFICATION:
            return []
        told = _message(envelope["Message"])
        if told is None:
            log.info("a topic sent a notice, not feedback", provider=self._provider)
            return []
        name = told.get("eventType") or told.get("notificationType")
        if name not in KINDS:
            return []
        return list(_heard(name, told, str(envelope["MessageId"]), _moment(envelope["Timestamp"])))

    async def answer(self, posted: SignedRequest) -> None:
        envelope = json.loads(posted.body)
        if envelope["Type"] == SUBSCRIPTION:
            await confirm(envelope, self._certificates)
            log.info("a topic was confirmed", provider=self._provider)
        elif envelope["Type"] == UNSUBSCRIPTION:
            log.warning(
                "a topic sends no more feedback: it was unsubscribed", provider=self._provider
            )

    async def close(self) -> None:
        await self._certificates.close()


def _envelope(body: bytes) -> Mapping[str, Any]:
    try:
        envelope = json.loads(body)
    except (ValueError, RecursionError):
        raise Forged("unsigned", "this is no message of SNS") from None
    if not isinstance(envelope, dict):
        raise Forged("unsigned", "this is no message of SNS")
    # Null is as good as left out, and is not signed. What is not signed, such as attributes, may be
    # anything.
    given = {name: value for name, value in envelope.items() if value is not None}
    if not all(isinstance(given[name], str) for name in SIGNED_FIELDS & given.keys()):
        raise Forged("unsigned", "this is no message of SNS")
    return given


def _message(text: str) -> Mapping[str, Any] | None:
    """What SES tells; None for a notice in plain words, such as that a topic was validated."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _time(text: object) -> float:
    try:
        return _moment(text).timestamp()
    except ValueError:
        raise Forged("unsigned", "the time stamp is missing") from None


def _moment(text: object) -> datetime:
    moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    if moment is None:
        raise ValueError("not a time")
    return moment.replace(tzinfo=moment.tzinfo or UTC)


def _event_time(published_at: datetime, *given: object) -> datetime:
    """The first time that is given; where there is none, when the notification was published."""
    for one in given:
        try:
            return _moment(one)
        except ValueError:
            continue
    return published_at


def _heard(
    name: str, told: Mapping[str, Any], envelope_id: str, published_at: datetime
) -> Iterator[FeedbackEvent]:
    """One for each recipient."""
    place, list_name = DETAILS[name]
    mail, detail = part(told, "mail"), part(told, place)
    recipients = detail.get(list_name) if list_name else mail.get("destination")
    if not isinstance(recipients, list) or (name == "Subscription" and not _left(detail)):
        return
    if name in BY_ONE and len(recipients) > 1:
        recipients = [None]  # nobody knows whose
    tags = part(mail, "tags").get("pillarbox_message")
    tagged = message_of(*(tags if isinstance(tags, list) else ()))
    message_id = tagged or message_of(*_message_ids(mail))
    at = _event_time(published_at, detail.get("timestamp"), mail.get("timestamp"))
    for number, one in enumerate(recipients[:MOST_RECIPIENTS]):
        said = one if isinstance(one, dict) else {"emailAddress": one}
        raw = {
            **told,
            "mail": {**mail, "destination": []},
            place: {**detail, list_name or "recipient": one},
        }
        heard = _one(
            KINDS[name], f"{envelope_id[:200]}:{number}", at, message_id, mail, detail, said, raw
        )
        yield heard if tagged else replace(heard, doubtful=True)


def _one(
    kind: FeedbackKind,
    event_id: str,
    at: datetime,
    message_id: UUID | None,
    mail: Mapping[str, Any],
    detail: Mapping[str, Any],
    said: Mapping[str, Any],
    raw: Mapping[str, Any],
) -> FeedbackEvent:
    unhappy = kind in UNHAPPY
    return FeedbackEvent(
        kind=kind,
        event_id=event_id,
        at=at,
        message_id=message_id,
        recipient=said.get("emailAddress"),
        provider_message_id=id_of(mail.get("messageId")),
        hard=_hard(kind, detail),
        reason=_reason(detail, said) if unhappy else None,
        text=text_of(said.get("diagnosticCode"), detail.get("reason"), detail.get("errorMessage"))
        if unhappy
        else None,
        raw=raw,
    )


def _left(detail: Mapping[str, Any]) -> bool:
    """Whether somebody wants no mail at all; a change of topics, or a return, is told in the same way."""
    return part(detail, "newTopicPreferences").get("unsubscribeAll") is True


def _message_ids(mail: Mapping[str, Any]) -> Iterator[object]:
    """The Message-ID of the mail, where SES tells its headers."""
    yield part(mail, "commonHeaders").get("messageId")
    headers = mail.get("headers")
    for header in headers if isinstance(headers, list) else ():
        if isinstance(header, dict) and str(header.get("name")).lower() == "message-id":
            yield header.get("value")


def _hard(kind: FeedbackKind, detail: Mapping[str, Any]) -> bool:
    if kind is FeedbackKind.COMPLAINED:
        return detail.get("complaintFeedbackType") != "not-spam"
    if kind is FeedbackKind.BOUNCED:
        return detail.get("bounceType") == "Permanent"
    return kind is FeedbackKind.UNSUBSCRIBED


def _reason(detail: Mapping[str, Any], said: Mapping[str, Any]) -> Reason:
    by_type = SUBTYPES.get(str(detail.get("bounceSubType") or detail.get("delayType")))
    return by_type or reason_of(said.get("status"), said.get("diagnosticCode"))
