"""Types of values in requests: how they are parsed, and their OpenAPI descriptions."""

from __future__ import annotations

import re
from base64 import b64decode
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
)
from pydantic import WithJsonSchema as Schema

# Addresses and subjects are shorter: a longer filter would match nothing.
MAX_FILTER_LENGTH = 320
_time = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d").match
_blanks = re.compile(r"[ \t\r\n]+")
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"


class StrictModel(BaseModel):
    """A request body: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _decoded(value: Any) -> bytes:
    """Bytes from base64, which may contain line breaks."""
    if not isinstance(value, str):
        raise ValueError("must be a string of base64")
    try:
        return _unbase64(value)
    except ValueError:
        raise ValueError("is not base64") from None


def _unbase64(value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError:
        return b64decode(_blanks.sub("", value), validate=True)


def _moment(value: Any) -> datetime:
    """A time with its zone. Numbers are refused: 5 would be five seconds after 1970."""
    try:
        if not isinstance(value, str) or not _time(value):
            raise ValueError
        at = datetime.fromisoformat(value)
        moment = at.astimezone(UTC)  # beyond the calendar's ends this overflows
    except (ValueError, OverflowError):
        raise ValueError("must be a time such as 2030-12-31T23:59:00Z") from None
    if at.tzinfo is None:
        raise ValueError("must have a time zone, as in 2030-12-31T23:59:00Z")
    return moment


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain NUL")
    return value


_STRINGS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
# One string is a list of one. A tuple: its default need not be copied for every mail.
StringList = Annotated[tuple[str, ...], BeforeValidator(_listed), Schema(_STRINGS)]
Base64 = Annotated[
    bytes, BeforeValidator(_decoded), Schema({"type": "string", "contentEncoding": "base64"})
]
Timestamp = Annotated[
    datetime, BeforeValidator(_moment), Schema({"type": "string", "format": "date-time"})
]
StrictInt = Annotated[int, Strict()]
Name = Annotated[str, StringConstraints(pattern=NAME)]
FilterText = Annotated[
    str, Field(min_length=1, max_length=MAX_FILTER_LENGTH), AfterValidator(_without_nul)
]
