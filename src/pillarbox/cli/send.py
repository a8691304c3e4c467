"""`send`: a test mail, through the queue like any other."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer
from rich.progress import track
from rich.text import Text

from pillarbox.accept.enqueue import enqueue, enqueue_many
from pillarbox.accept.mail import Attachment, Mail
from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.send_wait import SETTLED, DeliveryWatch
from pillarbox.errors import InvalidMail, NotPossible
from pillarbox.model.delivery import State
from pillarbox.store.messages import message_details, provider_name, short_id

if TYPE_CHECKING:
    from pillarbox.app import App

# Mails per statement: large enough to hide the round trip, small enough for a smooth progress bar.
BATCH = 500


def register(root: typer.Typer) -> None:
    command(root, "send")(send)


async def send(
    context: CommandContext,
    to: Annotated[
        list[str], typer.Option("--to", metavar="ADDRESS", help="A recipient; may be repeated.")
    ],
    sender: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="ADDRESS", help="The sender; the tenant's default when not given."
        ),
    ] = None,
    cc: Annotated[
        list[str] | None, typer.Option("--cc", metavar="ADDRESS", help="May be repeated.")
    ] = None,
    bcc: Annotated[
        list[str] | None, typer.Option("--bcc", metavar="ADDRESS", help="May be repeated.")
    ] = None,
    subject: Annotated[
        str, typer.Option("--subject", metavar="TEXT")
    ] = "A test mail from Pillarbox",
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="TEXT", help="The text; a short one when nothing is given."),
    ] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="HTML", help="The HTML.")] = None,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", metavar="FILE", help="A file; may be repeated.")
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME")] = "default",
    class_name: Annotated[str, typer.Option("--class", metavar="NAME")] = "transactional",
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="A label of what the mail is.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="May be repeated.")
    ] = None,
    priority: Annotated[
        str, typer.Option("--priority", metavar="LANE", help="urgent, normal or bulk.")
    ] = "normal",
    send_at: Annotated[
        datetime | None,
        typer.Option(
            "--send-at",
            metavar="TIME",
            parser=options.future,
            help="When: a time, or a wait such as 10m.",
        ),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="At most this many.")
    ] = None,
    count: Annotated[
        int,
        typer.Option("--count", min=1, max=10_000_000, metavar="N", help="Send it so many times."),
    ] = 1,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until it is settled, and say how; a line for each deferral."
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="TIME", parser=options.seconds, help="Wait no longer than this."
        ),
    ] = 60.0,
) -> int:
    """Send a test mail through the queue; prints its id.

    \b
    Examples:
      pillarbox send --from me@example.com --to you@example.com --wait
      pillarbox send --from me@example.com --to you@example.com --html "<h1>Hi</h1>" --attach report.pdf
      pillarbox send --from me@example.com --to you@example.com --send-at 10m
      pillarbox send --from me@example.com --to you@example.com --count 10000
    """
    if not (text or html or attach):
        text = "This is a test mail. If you can read it, everything works.\n"
    mail = Mail(
        sender=sender, to=to, cc=cc or (), bcc=bcc or (), subject=subject, text=text, html=html,
        attachments=[_attachment(path) for path in attach or ()], tenant=tenant, class_=class_name, kind=kind,
        tags=tag or (), priority=priority, send_at=send_at, max_attempts=max_attempts,
    )  # fmt: skip
    async with context.app() as app:
        ids = await _enqueue(app, mail, count)
        if not wait:
            _print_ids(ids, context.json)
            return 0
        _print_ids(ids, False) if not context.json and count == 1 else None
        return await _await(app, ids, timeout, context.json)


def _attachment(path: Path) -> Attachment:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidMail("bad_attachment", "--attach", f"{path}: {error.strerror}") from None
    kind, _ = mimetypes.guess_type(path.name)
    return Attachment(path.name, content, kind or "application/octet-stream")


async def _enqueue(app: App, mail: Mail, count: int) -> list[UUID]:
    ids: list[UUID] = []
    for size in _batches(count):
        async with app.database.transaction() as connection:
            if size == 1:
                ids.append(await enqueue(connection, mail))
            else:
                ids += await enqueue_many(connection, [mail] * size)
    return ids


def _batches(count: int) -> Iterator[int]:
    sizes = [min(BATCH, count - start) for start in range(0, count, BATCH)]
    if len(sizes) == 1:
        return iter(sizes)
    return iter(track(sizes, "enqueueing", console=output.console(stderr=True), transient=True))


def _print_ids(ids: Sequence[UUID], json: bool) -> None:
    if json:
        output.print_json({"ids": ids})
    elif len(ids) == 1:
        print(ids[0])
    else:
        output.say(f"enqueued {output.counted(len(ids), 'mail')}, {ids[0]} to {ids[-1]}")


async def _await(app: App, ids: Sequence[UUID], timeout: float, json: bool) -> int:
    """Wait until everything is settled; the exit code says whether everything was sent."""
    states = await DeliveryWatch(app.database, ids, output.note if json else output.say).run(
        timeout
    )
    if json:
        output.print_json({"ids": ids, "states": states})
    elif len(ids) == 1:
        await _tell(app, ids[0])
    else:
        output.say(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    unsettled = sum(count for state, count in states.items() if state not in SETTLED)
    if unsettled:
        where = f"queue show {short_id(ids[0])}" if len(ids) == 1 else "queue stats"
        raise NotPossible(
            f"{output.counted(unsettled, 'delivery')} not settled after {output.span(timeout)}; nothing is lost, the"
            f" queue goes on with it. See `pillarbox {where}`, or wait longer with --timeout"
        )
    return 0 if set(states) <= {State.SENT, State.DELIVERED} else 1


async def _tell(app: App, message_id: UUID) -> None:
    told = await message_details(app.database, message_id)
    for one in told.deliveries:
        last = next((attempt for attempt in reversed(told.attempts) if attempt.n == one.n), None)
        words = [
            one.reason or "",
            str(last.code or "") if last else "",
            (last.reply or "") if last else "",
        ]
        via = f" via {provider_name(one)}" if one.provider else ""
        said = output.clean(f"{via} {' '.join(filter(None, words))}".rstrip())
        output.say(
            Text.assemble(output.clean(f"{one.recipient}: "), output.styled(one.state), said)
        )
