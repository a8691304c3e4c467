"""What a field of a record says beyond its type: its name in JSON, its description, its enum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pillarbox.model.delivery import Role, State
from pillarbox.model.outcome import Verdict
from pillarbox.model.suppression import SuppressionReason
from pillarbox.model.webhook import CallState, DisabledReason


class OneOf:
    """Marks a string whose values the server takes from an enum.

    In the OpenAPI description it is that enum. Clients read any string: newer servers may have more
    values.
    """

    def __init__(self, values: Any) -> None:
        self.values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        # Described as the enum, written as the string that it is.
        return handler.generate_schema(self.values) | {"serialization": {"type": "str"}}


StateName = Annotated[str, OneOf(State)]
RoleName = Annotated[str, OneOf(Role)]
VerdictName = Annotated[str, OneOf(Verdict)]
SuppressionReasonName = Annotated[str, OneOf(SuppressionReason)]
CallStateName = Annotated[str, OneOf(CallState)]
DisabledReasonName = Annotated[str, OneOf(DisabledReason)]


def about(description: str) -> Mapping[str, Any]:
    """Metadata of a field: what the OpenAPI description says about it."""
    return {"description": description}


def named(alias: str) -> Mapping[str, Any]:
    """Metadata of a field whose name in JSON is a keyword of Python, or unclear in it."""
    return {"alias": alias}


def absent(default: Any) -> Mapping[str, Any]:
    """Metadata of a field that an older server does not send: clients read `default`."""
    return {"absent": default}
