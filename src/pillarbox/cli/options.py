"""Options that several commands have, and the values people type into them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason
from pillarbox.setting_kinds import duration

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def name(value: str) -> str:
    """A name of a tenant, class or provider."""
    if not _NAME.fullmatch(value):
        raise typer.BadParameter(
            f"{value!r}: a name is 1 to 63 letters, digits, dots, dashes and underscores"
        )
    return value


def seconds(value: str) -> float:
    """A duration such as 30s, 5m, 2h, 7d."""
    try:
        return float(duration().read(value))
    except (ValueError, TypeError):
        raise typer.BadParameter(f"{value!r}: give a duration such as 30s, 5m, 2h or 7d") from None


def past(value: str) -> datetime:
    """A time, or how long ago."""
    return _time(value, -1)


def future(value: str) -> datetime:
    """A time, or how long from now."""
    return _time(value.removeprefix("+"), 1)


def _time(value: str, direction: int) -> datetime:
    try:
        return datetime.now(UTC) + direction * timedelta(seconds=float(duration().read(value)))
    except (ValueError, TypeError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(value)
        return at if at.tzinfo else at.astimezone()  # a time without a zone is the reader's own
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{value!r}: give a time such as 2030-01-31T08:00Z, or a duration such as 30m, 2h or 7d"
        ) from None


def uuid(value: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a whole message id") from None


def reason(value: str) -> str:
    """A word that says why."""
    if value not in set(Reason):
        raise typer.BadParameter(f"{value!r} is no reason: it is one of {', '.join(Reason)}")
    return value


def _filter(
    flag: str, metavar: str, help: str, parser: Callable[[str], object] | None = None
) -> object:
    return typer.Option(
        flag,
        metavar=metavar,
        help=help,
        parser=parser,
        rich_help_panel="Filters",
        show_default=False,
    )


States = Annotated[
    list[State] | None, _filter("--state", "STATE", "Deliveries in this state; may be repeated.")
]
TenantFilter = Annotated[str | None, _filter("--tenant", "NAME", "Mails of this tenant.")]
ClassFilter = Annotated[str | None, _filter("--class", "NAME", "Mails of this class.")]
KindFilter = Annotated[str | None, _filter("--kind", "KIND", "Mails of this kind.")]
TagFilter = Annotated[str | None, _filter("--tag", "TAG", "Mails with this tag.")]
SenderFilter = Annotated[str | None, _filter("--sender", "TEXT", "Senders that contain this.")]
RecipientFilter = Annotated[
    str | None, _filter("--recipient", "TEXT", "Recipients that contain this.")
]
SubjectFilter = Annotated[str | None, _filter("--subject", "TEXT", "Subjects that contain this.")]
ProviderFilter = Annotated[
    str | None, _filter("--provider", "NAME", "Deliveries last tried through this provider.")
]
ReasonFilter = Annotated[
    str | None, _filter("--reason", "WORD", "Deliveries with this reason.", reason)
]
Since = Annotated[
    datetime | None,
    _filter("--since", "TIME", "Not older than this: a time, or an age such as 2h.", past),
]
Until = Annotated[
    datetime | None,
    _filter("--until", "TIME", "Older than this: a time, or an age such as 2h.", past),
]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, metavar="N", help="At most this many.")
]
MessageId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The message's id, or its last (or first) 8 characters or more."
    ),
]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="ID", help="Older than this message: the next page."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def with_options(
    function: Callable[..., Any], place: str, more: Iterable[tuple[str, Any, Any]]
) -> Callable[..., Any]:
    """Give a command more options (name, annotation, default); it gets them as its keyword arguments `place`."""
    own = [
        one
        for one in inspect.signature(function, eval_str=True).parameters.values()
        if one.name != place
    ]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, default=default, annotation=option)
        for name, option, default in more
    ]
    function.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    return function


def confirm(question: str, yes: bool) -> None:
    """Ask, unless told not to; no answer means no."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
