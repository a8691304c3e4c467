"""The requests that Amazon SNS posts: signed envelopes and confirmations."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from pillarbox.testing.twins.keys import RsaKey

ACCOUNT = "123456789012"
# What is signed, in this order; of these, what the envelope has.
SIGNED = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": (
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ),
    "UnsubscribeConfirmation": (
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ),
}


def timestamp(at: datetime | None = None) -> str:
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def notification(message: str, topic: str, url: str) -> dict[str, str]:
    subscription = f"{topic}:{uuid.uuid4()}"
    return {
        "Type": "Notification",
        "MessageId": str(uuid.uuid4()),
        "TopicArn": topic,
        "Subject": "Amazon SES Email Event Notification",
        "Message": message,
        "Timestamp": timestamp(),
        "UnsubscribeURL": f"{url}/?Action=Unsubscribe&SubscriptionArn={quote(subscription, safe='')}",
    }


def confirmation(kind: str, topic: str, url: str) -> dict[str, str]:
    """Of a new subscription, or of its end."""
    token = secrets.token_hex(128)
    return {
        "Type": kind,
        "MessageId": str(uuid.uuid4()),
        "Token": token,
        "TopicArn": topic,
        "Message": f"You have chosen to subscribe to the topic {topic}.\nTo confirm the subscription, visit the"
        " SubscribeURL included in this message.",
        "SubscribeURL": f"{url}/?Action=ConfirmSubscription&TopicArn={quote(topic, safe='')}&Token={token}",
        "Timestamp": timestamp(),
    }


def signed(
    envelope: Mapping[str, str], key: RsaKey, version: str, certificate_url: str
) -> tuple[dict[str, str], bytes]:
    """The request that carries an envelope."""
    names = [name for name in SIGNED[envelope["Type"]] if name in envelope]
    text = "".join(f"{name}\n{envelope[name]}\n" for name in names)
    complete = {
        **envelope,
        "SignatureVersion": version,
        "Signature": key.sign(text.encode(), version),
        "SigningCertURL": certificate_url,
    }
    headers = {
        "Content-Type": "text/plain; charset=UTF-8",
        "User-Agent": "Amazon Simple Notification Service Agent",
        "x-amz-sns-message-type": envelope["Type"],
        "x-amz-sns-message-id": envelope["MessageId"],
        "x-amz-sns-topic-arn": envelope["TopicArn"],
    }
    return headers, json.dumps(complete, indent=2).encode()


def confirmed(topic: str) -> bytes:
    """What SNS says to a confirmation."""
    return (
        '<ConfirmSubscriptionResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><ConfirmSubscriptionResult>'
        f"<SubscriptionArn>{topic}:{uuid.uuid4()}</SubscriptionArn></ConfirmSubscriptionResult>"
        "</ConfirmSubscriptionResponse>"
    ).encode()


def message_of(body: bytes) -> Any:
    """What SES says inside an envelope."""
    return json.loads(json.loads(body)["Message"])
