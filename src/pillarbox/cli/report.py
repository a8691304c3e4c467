"""`report`: processes a bounce mail or a complaint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext, command
from pillarbox.errors import NotPossible
from pillarbox.model.delivery import delivery_id
from pillarbox.track.bounce_reports import NotAReport

if TYPE_CHECKING:
    from pillarbox.store.feedback import FeedbackMatch
    from pillarbox.track.feedback.base import FeedbackEvent

STDIN = "-"


def register(root: typer.Typer) -> None:
    command(root, "report")(report)


async def report(
    context: CommandContext,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The received mail; - for stdin.")],
) -> int:
    """Process a bounce mail or a complaint; it has the same effect as feedback of a provider.

    Exits with 1 if it matches no known message.

    \b
    Examples:
      pillarbox report bounce.eml
      pillarbox report - < bounce.eml
      pillarbox report complaint.eml --json
    """
    limit = context.settings.feedback_max_body
    mail = _read(file, limit)
    if len(mail) > limit:
        raise NotPossible(
            f"{file} is larger than {output.size(limit)}: raise the setting feedback_max_body"
        )
    async with context.app() as app:
        try:
            events = await app.ingest.take_report(mail, await app.return_path_key())
        except NotAReport as error:
            raise NotPossible(f"{file}: {error}") from None
    if context.json:
        output.print_json({"events": [_as_json(event, match) for event, match in events]})
    else:
        for event, match in events:
            _print_event(event, match)
    is_known = any(match for _, match in events)
    return int(not is_known)


def _read(file: str, limit: int) -> bytes:
    try:
        if file == STDIN:
            return sys.stdin.buffer.read(limit + 1)
        with Path(file).open("rb") as opened:
            return opened.read(limit + 1)
    except OSError as error:
        raise NotPossible(f"{file} cannot be read: {error.strerror}") from None


def _as_json(event: FeedbackEvent, match: FeedbackMatch | None) -> dict[str, object]:
    delivery = None
    is_new = False
    if match is not None:
        delivery = delivery_id(match.message_id, match.n)
        is_new = match.is_new
    return {
        "kind": event.kind,
        "delivery": delivery,
        "reason": event.reason,
        "hard": event.hard,
        "new": is_new,
    }


def _print_event(event: FeedbackEvent, match: FeedbackMatch | None) -> None:
    words = [str(event.kind)]
    if event.reason:
        words.append(str(event.reason))
    if event.hard:
        words.append("permanent")
    line = "no known message: " + " ".join(words)
    if match is not None:
        line = f"{delivery_id(match.message_id, match.n)}: " + " ".join(words)
        if not match.is_new:
            line += ", reported before"
    output.say(output.clean(line))
