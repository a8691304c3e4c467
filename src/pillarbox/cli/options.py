"""Options that several commands share, and parsers of their values."""

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
        if at.tzinfo is None:
            at = at.astimezone()  # a time without a zone is local time
        return at
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{value!r}: give a time such as 2030-01-31T08:00Z, or a duration such as 30m, 2h or 7d"
        ) from None


def uuid(value: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a complete message id") from None


def reason(value: str) -> str:
    """A reason of an outcome."""
    if value not in set(Reason):
        raise typer.BadParameter(f"{value!r} is not a reason: give one of {', '.join(Reason)}")
    return value


def _filter(
    flag: str,
    metavar: str,
    help: str,
    parser: Callable[[str], object] | None = None,
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
    list[State] | None,
    _filter("--state", "STATE", "Only deliveries in this state; may be repeated."),
]
TenantFilter = Annotated[str | None, _filter("--tenant", "NAME", "Only mails of this tenant.")]
ClassFilter = Annotated[str | None, _filter("--class", "NAME", "Only mails of this class.")]
KindFilter = Annotated[str | None, _filter("--kind", "KIND", "Only mails of this kind.")]
TagFilter = Annotated[str | None, _filter("--tag", "TAG", "Only mails with this tag.")]
SenderFilter = Annotated[
    str | None, _filter("--sender", "TEXT", "Only senders that contain this text.")
]
RecipientFilter = Annotated[
    str | None, _filter("--recipient", "TEXT", "Only recipients that contain this text.")
]
SubjectFilter = Annotated[
    str | None, _filter("--subject", "TEXT", "Only subjects that contain this text.")
]
ProviderFilter = Annotated[
    str | None,
    _filter("--provider", "NAME", "Only deliveries whose last attempt used this provider."),
]
ReasonFilter = Annotated[
    str | None,
    _filter(
        "--reason",
        "WORD",
        "Only deliveries with this reason.",
        reason,
    ),
]
Since = Annotated[
    datetime | None,
    _filter(
        "--since",
        "TIME",
        "Only newer than this: a time, or an age such as 2h.",
        past,
    ),
]
Until = Annotated[
    datetime | None,
    _filter(
        "--until",
        "TIME",
        "Only older than this: a time, or an age such as 2h.",
        past,
    ),
]
Limit = Annotated[
    int,
    typer.Option(
        "--limit",
        "-n",
        min=1,
        max=10_000,
        metavar="N",
        help="At most this many.",
    ),
]
MessageId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The message id, or at least its first or last 8 characters."
    ),
]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="ID", help="Only older than this message: the next page."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def with_options(
    function: Callable[..., Any], parameter: str, more: Iterable[tuple[str, Any, Any]]
) -> Callable[..., Any]:
    """Add options (name, annotation, default) in place of the command's `**parameter`."""
    signature = inspect.signature(function, eval_str=True)
    own = [own for own in signature.parameters.values() if own.name != parameter]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(
            name,
            kind,
            default=default,
            annotation=option,
        )
        for name, option, default in more
    ]
    function.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    return function


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation unless `yes`; no answer means no."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
