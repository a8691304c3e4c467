"""Parts of the OpenAPI description beside the models: problems, scopes, parameters."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from fastapi import Header, Path, Query
from pydantic import BaseModel, ConfigDict

from pillarbox.api.fields import NAME
from pillarbox.api.problem_types import TYPES
from pillarbox.api.problems import MEDIA_TYPE, ProblemError
from pillarbox.model.access import Scope

# Problems that any operation can answer.
ALWAYS = (
    "unauthorized",
    "not-allowed",
    "wrong-host",
    "throttled",
    "internal",
    "overloaded",
    "store-away",
)
# Problems that operations with a body can answer, too.
BODY = ("malformed", "request-timeout", "too-large", "unsupported-media-type", "invalid-request")
Responses = dict[int | str, dict[str, Any]]
# Schemas by the names that they had in 0.1.0, for programs generated from its description.
# Deprecated: removed in 0.3.
RENAMED_SCHEMAS = {
    "AccountShown": "SignedInAccount",
    "Begun": "SignInChallenge",
    "CallShown": "WebhookCall",
    "Cause": "SuppressionReason",
    "Changed": "ChangedDelivery",
    "DeadDeliveryShown": "DeadDelivery",
    "DeadLettersWanted": "DeadLettersToChange",
    "Disabled": "DisabledReason",
    "Fate": "MailFate",
    "HeardOf": "ReportedEvent",
    "KeyMade": "KeyWithSecret",
    "KeyShown": "KeyDetails",
    "Kind-Input": "WebhookEventType",
    "Kind-Output": "FeedbackKind",
    "Login": "AdminLogin",
    "LoginMade": "LoginWithPassword",
    "LoginShown": "LoginDetails",
    "Message": "FullMessage",
    "Obstacle": "ProviderObstacle",
    "Proof": "AdminVerification",
    "ProviderEventShown": "ProviderEventDetails",
    "Reported": "ReportResult",
    "RouteShown": "RouteDetails",
    "SessionBegun": "NewSession",
    "SignIn": "SignInRequest",
    "SuppressionShown": "Suppression",
    "TenantShown": "TenantDetails",
    "TestShown": "WebhookTest",
    "Use": "CandidateUse",
    "Verify": "VerifyRequest",
    "WebhookMade": "WebhookWithSecret",
    "WebhookShown": "WebhookDetails",
    "Why": "ObstacleReason",
}

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="Your identifier of this request: up to 255 printable ASCII characters. If"
        " the request is repeated within a day, the response is the same and nothing is sent"
        " twice; a different request with the same key is refused with 409.",
    ),
]
NamePath = Annotated[str, Path(pattern=NAME, description="The name of a tenant.")]
Prefix = Annotated[
    str, Path(pattern=r"^(pbx_)?[a-z0-9]{10}$", description="The prefix of the key.")
]
KeepDescendants = Annotated[
    bool, Query(description="Do not revoke the keys and logins that it created.")
]
Username = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9_.-]{1,63}@[A-Za-z0-9_.-]{1,63}$", description="The user name.")
]


class Fault(BaseModel):
    """One of several errors in a request."""

    field: str
    code: str
    detail: str


class Problem(BaseModel):
    """A problem (RFC 9457). `type` is stable; it is the path of a page that explains it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str | None = None
    field: str | None = None
    hint: str | None = None
    errors: list[Fault] | None = None


def needs(*scopes: Scope) -> dict[str, Any]:
    """The security requirement of an operation: a key with these scopes."""
    return {"security": [{"key": [scope.value for scope in scopes]}]}


# The security requirement of an operation without a key.
PUBLIC: dict[str, Any] = {"security": []}


def problems(*names: str) -> Responses:
    """The problem responses of an operation: these, and those of every operation."""
    by_status: dict[int, list[str]] = defaultdict(list)
    for name in dict.fromkeys((*names, *ALWAYS)):
        by_status[TYPES[name].status].append(name)
    return {status: _response(some) for status, some in sorted(by_status.items())}


def _response(names: list[str]) -> dict[str, Any]:
    described = "; or: ".join(TYPES[name].title for name in names)
    examples = {name: {"value": ProblemError(name, TYPES[name].title).body()} for name in names}
    content = {
        MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}
    }
    return {"description": described, "content": content}


def deprecated_schemas() -> dict[str, dict[str, Any]]:
    """A schema for each deprecated name that refers to the current one."""
    return {
        old: {"$ref": f"#/components/schemas/{new}", "deprecated": True}
        for old, new in RENAMED_SCHEMAS.items()
    }
