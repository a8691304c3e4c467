"""`ses`: Amazon SES in one region."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pillarbox.model.provider_kind import (
    CONNECTIONS_OPTION,
    HTTP_TIMEOUT,
    TIMEOUT_OPTION,
    URL_OPTION,
    ProviderKind,
    TransportLimits,
    api_secret,
    check_http,
    check_match,
    option,
)
from pillarbox.model.secret import Secret

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_ACCESS_KEY = re.compile(r"\w{4,128}", re.ASCII)
_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[\w.-]{1,256}", re.ASCII)
_TOPIC_EXAMPLE = "a topic such as arn:aws:sns:eu-west-1:123456789012:mail"


@dataclass(frozen=True, slots=True)
class SesSettings:
    """Amazon SES in one region."""

    region: str = field(metadata=option("Such as eu-west-1.", "REGION"))
    access_key_id: str = field(
        metadata=option("Of the key that may ses:SendRawEmail.", "ID", is_credential=True)
    )
    secret_key: Secret | None = None
    configuration_set: str | None = field(
        default=None, metadata=option("What each mail is sent with; it makes the events.", "NAME")
    )
    # The SNS topics whose messages are believed.
    topics: Sequence[str] = field(
        default=(),
        metadata=option(
            "An SNS topic whose messages are believed; may be repeated.",
            "ARN",
            flag="--topic",
            is_feedback=True,
        ),
    )
    url: str | None = field(default=None, metadata=URL_OPTION)  # when not the region's own
    connections: int = field(default=10, metadata=CONNECTIONS_OPTION)
    timeout: float = field(default=HTTP_TIMEOUT, metadata=TIMEOUT_OPTION)

    def __post_init__(self) -> None:
        check_match("region", _REGION, self.region, "a region such as eu-west-1")
        check_match(
            "access_key_id", _ACCESS_KEY, self.access_key_id, "an access key id such as AKIA…"
        )
        name = self.configuration_set
        if name is not None:
            check_match("configuration_set", _NAME, name, "a configuration set's name")
        for topic in self.topics:
            check_match("topics", _TOPIC, topic, _TOPIC_EXAMPLE)
        check_http(self.endpoint, self.connections, self.timeout)

    @property
    def endpoint(self) -> str:
        if self.url:
            return self.url
        suffix = ".cn" if self.region.startswith("cn-") else ""
        return f"https://email.{self.region}.amazonaws.com{suffix}"


KIND = ProviderKind(
    name="ses",
    help="""Add Amazon SES in one region.

    The secret access key is asked for, or comes from stdin or a variable.

    \b
    Examples:
      pillarbox provider add ses ses --region eu-west-1 --access-key-id AKIA… \\
        --secret-env AWS_SECRET_ACCESS_KEY
      pillarbox provider add ses ses --region eu-west-1 --access-key-id AKIA… \\
        --configuration-set mail --topic arn:aws:sns:eu-west-1:123456789012:mail
    """,
    settings=SesSettings,
    transport="pillarbox.deliver.transports.ses:build_transport",
    feedback="pillarbox.track.feedback.ses:SesFeedback",
    rank=20,
    secret=api_secret("secret access key", "secret_key"),
    limits=TransportLimits(max_bytes=40_000_000, max_recipients=50),  # SES's own, for one call
)
