"""`report`: hand in a bounce mail or a complaint."""

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
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The mail as it was received; - for stdin.")
    ],
) -> int:
    """Hand in a bounce mail or a complaint; it counts like the feedback of a provider.

    Exits with 1 if it is about no message that is known.

    \b
    Examples:
      pillarbox report bounce.eml
      pillarbox report - < bounce.eml
      pillarbox report complaint.eml --json
    """
    most = context.settings.feedback_max_body
    mail = _read(file, most)
    if len(mail) > most:
        raise NotPossible(
            f"{file} has more than {output.octets(most)}: raise the setting feedback_max_body"
        )
    async with context.app() as app:
        try:
            heard = await app.ingest.take_report(mail, await app.return_path_key())
        except NotAReport as error:
            raise NotPossible(f"{file}: {error}") from None
    if context.json:
        output.print_json({"events": [_told(*one) for one in heard]})
    else:
        _show(heard)
    return 0 if any(found for _, found in heard) else 1


def _read(file: str, most: int) -> bytes:
    try:
        if file == STDIN:
            return sys.stdin.buffer.read(most + 1)
        with Path(file).open("rb") as opened:
            return opened.read(most + 1)
    except OSError as error:
        raise NotPossible(f"{file} cannot be read: {error.strerror}") from None


def _told(heard: FeedbackEvent, found: FeedbackMatch | None) -> dict[str, object]:
    return {
        "kind": heard.kind,
        "delivery": delivery_id(found.message_id, found.n) if found else None,
        "reason": heard.reason,
        "hard": heard.hard,
        "new": found is not None and found.is_new,
    }


def _show(heard: list[tuple[FeedbackEvent, FeedbackMatch | None]]) -> None:
    for one, found in heard:
        about = delivery_id(found.message_id, found.n) if found else "no message that is known"
        again = "" if found is None or found.is_new else ", which was reported before"
        words = " ".join(filter(None, (one.kind, one.reason, "for good" if one.hard else "")))
        output.say(output.clean(f"{about}: {words}{again}"))
