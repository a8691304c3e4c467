"""How other processes ask a twin how it goes, and turn its dials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pillarbox.testing.twins.dials import Dials, FeedbackDials
from pillarbox.testing.twins.wire import Answer, Request, json_answer

if TYPE_CHECKING:
    from pillarbox.testing.twins.base import Twin

PREFIX = "/_twin"


def control(twin: Twin, request: Request) -> Answer:
    """GET tells how it goes; PUT of dials, feedback or webhook_url changes them."""
    what = request.path.removeprefix(PREFIX).strip("/")
    try:
        if request.method == "PUT":
            _set(twin, what, request.json())
    except (ValueError, TypeError, LookupError) as error:
        return json_answer(400, {"message": str(error)})
    return json_answer(200, twin.state())


def _set(twin: Twin, what: str, value: Any) -> None:
    if what == "dials":
        twin.dials = Dials(**value)
    elif what == "feedback":
        twin.feedback = FeedbackDials(**value) if value is not None else None
    elif what == "webhook_url":
        twin.webhook_url = value
    else:
        raise LookupError("there are dials, feedback and webhook_url")
