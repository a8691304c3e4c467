"""`send`: sends a test mail through the queue."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Iterator, Sequence
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

To = Annotated[
    list[str], typer.Option("--to", metavar="ADDRESS", help="A recipient; may be repeated.")
]
Sender = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="ADDRESS", help="The sender; the tenant's default sender by default."
    ),
]
Cc = Annotated[
    list[str] | None, typer.Option("--cc", metavar="ADDRESS", help="A copy; may be repeated.")
]
Bcc = Annotated[
    list[str] | None,
    typer.Option("--bcc", metavar="ADDRESS", help="A blind copy; may be repeated."),
]
Subject = Annotated[str, typer.Option("--subject", metavar="TEXT")]
TextPart = Annotated[
    str | None,
    typer.Option("--text", metavar="TEXT", help="The text; a short one by default."),
]
HtmlPart = Annotated[str | None, typer.Option("--html", metavar="HTML", help="The HTML.")]
Attach = Annotated[
    list[Path] | None, typer.Option("--attach", metavar="FILE", help="A file; may be repeated.")
]
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME")]
ClassName = Annotated[str, typer.Option("--class", metavar="NAME")]
Kind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="A label of what the mail is.")
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag; may be repeated.")
]
ListUnsubscribe = Annotated[
    list[str] | None,
    typer.Option(
        "--list-unsubscribe",
        metavar="URL",
        help="A URL by which a recipient unsubscribes; may be repeated.",
    ),
]
Priority = Annotated[
    str, typer.Option("--priority", metavar="LANE", help="urgent, normal or bulk.")
]
SendAt = Annotated[
    datetime | None,
    typer.Option(
        "--send-at",
        metavar="TIME",
        parser=options.future,
        help="Send it at a time, or after a duration such as 10m.",
    ),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", metavar="N", help="Make at most this many attempts."),
]
Count = Annotated[
    int,
    typer.Option(
        "--count",
        min=1,
        max=10_000_000,
        metavar="N",
        help="Send it this many times.",
    ),
]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait until it is settled, and show the result and each deferral."),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=options.seconds,
        help="Wait at most this long.",
    ),
]


def register(root: typer.Typer) -> None:
    command(root, "send")(send)


async def send(
    context: CommandContext,
    to: To,
    sender: Sender = None,
    cc: Cc = None,
    bcc: Bcc = None,
    subject: Subject = "A test mail from Pillarbox",
    text: TextPart = None,
    html: HtmlPart = None,
    attach: Attach = None,
    tenant: Tenant = "default",
    class_name: ClassName = "transactional",
    kind: Kind = None,
    tag: Tags = None,
    list_unsubscribe: ListUnsubscribe = None,
    priority: Priority = "normal",
    send_at: SendAt = None,
    max_attempts: MaxAttempts = None,
    count: Count = 1,
    wait: Wait = False,
    timeout: Timeout = 60.0,
) -> int:
    """Send a test mail through the queue, and print its id.

    \b
    Examples:
      pillarbox send --from me@example.com --to you@example.com --wait
      pillarbox send --from me@example.com --to you@example.com --attach report.pdf
      pillarbox send --from me@example.com --to you@example.com --send-at 10m
      pillarbox send --from me@example.com --to you@example.com --count 10000
    """
    if not (text or html or attach):
        text = "This is a test mail. If you can read it, everything works.\n"
    mail = Mail(
        sender=sender,
        to=to,
        cc=cc or (),
        bcc=bcc or (),
        subject=subject,
        text=text,
        html=html,
        attachments=[_attachment(path) for path in attach or ()],
        tenant=tenant,
        class_=class_name,
        kind=kind,
        tags=tag or (),
        list_unsubscribe=list_unsubscribe or (),
        priority=priority,
        send_at=send_at,
        max_attempts=max_attempts,
    )
    async with context.app() as app:
        ids = await _enqueue(app, mail, count)
        if not wait:
            _print_ids(ids, context.json)
            return 0
        if count == 1 and not context.json:
            _print_ids(ids, False)
        return await _await(
            app,
            ids,
            timeout,
            context.json,
        )


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
    return iter(
        track(
            sizes,
            "enqueueing",
            console=output.console(stderr=True),
            transient=True,
        )
    )


def _print_ids(ids: Sequence[UUID], json: bool) -> None:
    if json:
        output.print_json({"ids": ids})
    elif len(ids) == 1:
        print(ids[0])
    else:
        output.say(f"enqueued {output.counted(len(ids), 'mail')}, {ids[0]} to {ids[-1]}")


async def _await(
    app: App,
    ids: Sequence[UUID],
    timeout: float,
    json: bool,
) -> int:
    """Wait until everything is settled; the exit code says whether everything was sent."""
    print_line: Callable[[str], None] = output.say
    if json:
        print_line = output.note
    states = await DeliveryWatch(app.database, ids, print_line).run(timeout)
    if json:
        output.print_json({"ids": ids, "states": states})
    elif len(ids) == 1:
        await _print_result(app, ids[0])
    else:
        output.say(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    unsettled = sum(count for state, count in states.items() if state not in SETTLED)
    if unsettled:
        command_name = "queue stats"
        if len(ids) == 1:
            command_name = f"queue show {short_id(ids[0])}"
        number = output.counted(unsettled, "delivery")
        raise NotPossible(
            f"{number} not settled after {output.span(timeout)}; nothing is lost, the queue"
            f" continues. See `pillarbox {command_name}`, or wait longer with --timeout"
        )
    all_sent = set(states) <= {State.SENT, State.DELIVERED}
    return int(not all_sent)


async def _print_result(app: App, message_id: UUID) -> None:
    message = await message_details(app.database, message_id)
    for delivery in message.deliveries:
        words = [""]
        if delivery.provider:
            words.append(f"via {provider_name(delivery)}")
        if delivery.reason:
            words.append(delivery.reason)
        attempts = [attempt for attempt in message.attempts if attempt.n == delivery.n]
        if attempts:
            last = attempts[-1]
            words += [str(word) for word in (last.code, last.reply) if word]
        recipient = output.clean(f"{delivery.recipient}: ")
        details = output.clean(" ".join(words))
        output.say(Text.assemble(recipient, output.styled(delivery.state), details))
