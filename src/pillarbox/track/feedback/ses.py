"""Amazon SES through SNS: notifications of expected topics, signed with a certificate of Amazon.

https://docs.aws.amazon.com/ses/latest/dg/notification-contents.html
https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pillarbox.errors import Forged
from pillarbox.model.outcome import Reason
from pillarbox.telemetry import logs
from pillarbox.track.feedback.base import FeedbackEvent, FeedbackKind, SignedRequest
from pillarbox.track.feedback.event_fields import (
    UNDELIVERED,
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
NOT_SNS = "this is not a message of SNS"
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
# The object with the details of each event, and the name of its list of recipients.
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
# Caused by one recipient; SES does not say which.
BY_ONE = {"Open", "Click", "Subscription"}
# The recipients of a message.
MAX_RECIPIENTS = 100


class SesFeedback:
    """Needs the setting `topics`: the ARNs of the topics that SES publishes to.

    If the setting `url` is an address of this machine, certificates may come from there, too.
    """

    def __init__(self, provider: Provider, window: float) -> None:
        topics = provider.settings.get("topics") or ()
        if isinstance(topics, str):
            topics = [topics]
        self._topics = frozenset(topics)
        self._certificates = SnsCertificates(provider.settings.get("url"))
        self._window = window
        self._provider = provider.name

    async def verify(self, request: SignedRequest, now: float) -> None:
        """Check the topic first: nothing is fetched for unknown senders."""
        envelope = _envelope(request.body)
        if not self._topics:
            raise Forged("no_key", "the provider has no topics to take feedback from")
        if envelope.get("Type") not in TYPES:
            raise Forged("unsigned", NOT_SNS)
        if envelope.get("TopicArn") not in self._topics:
            raise Forged("topic", "this topic is not expected")
        check_time(_timestamp(envelope.get("Timestamp")), now, self._window)
        check_signature(envelope, await self._certificates.key_of(envelope, now))

    def parse(self, request: SignedRequest) -> Sequence[FeedbackEvent]:
        envelope = json.loads(request.body)
        if envelope["Type"] != NOTIFICATION:
            return []
        payload = _payload(envelope["Message"])
        if payload is None:
            log.info("a topic sent a notice, not feedback", provider=self._provider)
            return []
        name = payload.get("eventType") or payload.get("notificationType")
        if name not in KINDS:
            return []
        published_at = _moment(envelope["Timestamp"])
        return list(_events(name, payload, str(envelope["MessageId"]), published_at))

    async def answer(self, request: SignedRequest) -> None:
        envelope = json.loads(request.body)
        if envelope["Type"] == SUBSCRIPTION:
            await confirm(envelope, self._certificates)
            log.info("a topic was confirmed", provider=self._provider)
        elif envelope["Type"] == UNSUBSCRIPTION:
            log.warning(
                "a topic was unsubscribed: it sends feedback no longer", provider=self._provider
            )

    async def close(self) -> None:
        await self._certificates.close()


def _envelope(body: bytes) -> Mapping[str, Any]:
    try:
        envelope = json.loads(body)
    except (ValueError, RecursionError):
        raise Forged("unsigned", NOT_SNS) from None
    if not isinstance(envelope, dict):
        raise Forged("unsigned", NOT_SNS)
    # A null field counts as missing, and is not signed. Fields that are not signed, such as
    # attributes, may hold anything.
    given = {name: value for name, value in envelope.items() if value is not None}
    if not all(isinstance(given[name], str) for name in SIGNED_FIELDS & given.keys()):
        raise Forged("unsigned", NOT_SNS)
    return given


def _payload(text: str) -> Mapping[str, Any] | None:
    """The message of SES; None for a notice in plain text, such as that a topic was validated."""
    try:
        payload = json.loads(text)
    except ValueError:
        return None
    if isinstance(payload, dict):
        return payload
    return None


def _timestamp(text: object) -> float:
    try:
        return _moment(text).timestamp()
    except ValueError:
        raise Forged("unsigned", "the timestamp is missing") from None


def _moment(text: object) -> datetime:
    if not isinstance(text, str):
        raise ValueError("not a time")
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC)


def _event_time(published_at: datetime, *candidates: object) -> datetime:
    """The first candidate that is a time; without one, when the notification was published."""
    for candidate in candidates:
        try:
            return _moment(candidate)
        except ValueError:
            continue
    return published_at


def _events(
    name: str, payload: Mapping[str, Any], envelope_id: str, published_at: datetime
) -> Iterator[FeedbackEvent]:
    """One event for each recipient."""
    details_name, list_name = DETAILS[name]
    mail, details = part(payload, "mail"), part(payload, details_name)
    recipients = details.get(list_name) if list_name else mail.get("destination")
    if not isinstance(recipients, list):
        return
    if name == "Subscription" and not _unsubscribed_from_all(details):
        return
    if name in BY_ONE and len(recipients) > 1:
        recipients = [None]  # which one is unknown
    common = _event(KINDS[name], mail, details, published_at)
    for index, listed in enumerate(recipients[:MAX_RECIPIENTS]):
        recipient = listed if isinstance(listed, dict) else {"emailAddress": listed}
        event = replace(
            common,
            event_id=f"{envelope_id[:200]}:{index}",
            recipient=recipient.get("emailAddress"),
            raw={
                **payload,
                "mail": {**mail, "destination": []},
                details_name: {**details, list_name or "recipient": listed},
            },
        )
        yield _explained(event, details, recipient)


def _event(
    kind: FeedbackKind, mail: Mapping[str, Any], details: Mapping[str, Any], published_at: datetime
) -> FeedbackEvent:
    """The fields that are the same for all recipients."""
    tags = part(mail, "tags").get("pillarbox_message")
    tagged = message_of(*tags) if isinstance(tags, list) else None
    return FeedbackEvent(
        kind=kind,
        event_id="",
        at=_event_time(published_at, details.get("timestamp"), mail.get("timestamp")),
        message_id=tagged or message_of(*_message_ids(mail)),
        doubtful=tagged is None,
        provider_message_id=id_of(mail.get("messageId")),
        hard=_hard(kind, details),
    )


def _explained(
    event: FeedbackEvent, details: Mapping[str, Any], recipient: Mapping[str, Any]
) -> FeedbackEvent:
    """The event with its reason and text, if the mail was not delivered."""
    if event.kind not in UNDELIVERED:
        return event
    diagnostic = recipient.get("diagnosticCode")
    text = text_of(diagnostic, details.get("reason"), details.get("errorMessage"))
    subtype = str(details.get("bounceSubType") or details.get("delayType"))
    reason = SUBTYPES.get(subtype) or reason_of(recipient.get("status"), diagnostic)
    return replace(event, reason=reason, text=text)


def _unsubscribed_from_all(details: Mapping[str, Any]) -> bool:
    """Subscribing again, and leaving some topics only, are reported by the same event."""
    return part(details, "newTopicPreferences").get("unsubscribeAll") is True


def _message_ids(mail: Mapping[str, Any]) -> Iterator[object]:
    """The Message-ID of the mail, where SES reports its headers."""
    yield part(mail, "commonHeaders").get("messageId")
    headers = mail.get("headers")
    if not isinstance(headers, list):
        return
    for header in headers:
        if isinstance(header, dict) and str(header.get("name")).lower() == "message-id":
            yield header.get("value")


def _hard(kind: FeedbackKind, details: Mapping[str, Any]) -> bool:
    if kind is FeedbackKind.COMPLAINED:
        return details.get("complaintFeedbackType") != "not-spam"
    if kind is FeedbackKind.BOUNCED:
        return details.get("bounceType") == "Permanent"
    return kind is FeedbackKind.UNSUBSCRIBED
