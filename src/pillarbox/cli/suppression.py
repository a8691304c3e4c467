"""`suppression`: addresses that a tenant's mails are not sent to."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from pillarbox.accept.suppressions import COLUMNS, SuppressionFault, checked, read, row, written
from pillarbox.cli import options, output
from pillarbox.cli.access_options import Expires, Owner
from pillarbox.cli.command import CommandContext, command
from pillarbox.errors import InvalidMail, NotFound, NotPossible
from pillarbox.model.suppression import SuppressionEntry, SuppressionReason
from pillarbox.store import suppressions as store
from pillarbox.store.tenants import get_tenant

if TYPE_CHECKING:
    from pillarbox.app import App
    from pillarbox.store.suppressions import SuppressionCounts
    from pillarbox.wire.suppressions import Suppression
# Faults that are printed: with more, the file is wrong as a whole.
SHOWN = 20
Addresses = Annotated[
    list[str], typer.Argument(metavar="ADDRESS…", help="Bare addresses; case does not matter.")
]
Why = Annotated[
    SuppressionReason | None,
    typer.Option("--reason", metavar="WORD", help="Show only this reason."),
]
Source = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="CSV in UTF-8, or - for standard input.", allow_dash=True),
]
Target = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="The file to write; standard output by default."),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Manage suppression lists: addresses that mails are not sent to.", no_args_is_help=True
    )
    command(group, "list")(list_)
    command(group, "add")(add)
    command(group, "remove")(remove)
    command(group, "import")(import_)
    command(group, "export")(export)
    root.add_typer(group, name="suppression")


async def list_(
    context: CommandContext,
    tenant: Owner = "default",
    address: Annotated[
        str | None, typer.Option("--address", metavar="ADDRESS", help="Show only this address.")
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="TEXT", help="Show only addresses that begin with this text."
        ),
    ] = None,
    reason: Why = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="ADDRESS", help="Show addresses after this one: the next page."
        ),
    ] = None,
    limit: options.Limit = 20,
) -> None:
    """List suppressed addresses in alphabetical order, without expired ones.

    \b
    Examples:
      pillarbox suppression list --tenant shop
      pillarbox suppression list --address ada@mail.example --json
      pillarbox suppression list --reason complaint --limit 100
    """
    async with context.app() as app:
        which = store.SuppressionFilter(prefix, reason, after)
        found = [
            record
            async for record in _find(
                app,
                tenant,
                address,
                which,
                limit,
            )
        ]
    if context.json:
        output.print_json(found)
        return
    rows = [_row(record) for record in found]
    output.table(("address", "reason", "since", "expires", "note~"), rows, "no address matches")
    if len(found) == limit:
        output.note(f"there may be more: add --after {found[-1].address}")


def _row(record: Suppression) -> tuple[object, ...]:
    return (
        record.address,
        record.reason,
        output.when(record.created_at),
        output.when(record.expires_at),
        record.note,
    )


async def _find(
    app: App,
    tenant: str,
    address: str | None,
    which: store.SuppressionFilter,
    limit: int,
) -> AsyncIterator[Suppression]:
    tenant_id = (await get_tenant(app.database, tenant)).id
    if address is not None:
        found = await store.find(app.database, tenant_id, address)
        if found:
            yield found
        return
    async for page in store.walk(app.database, tenant_id, which):
        for record in page[:limit]:
            yield record
        limit -= len(page)
        if limit <= 0:
            return


async def add(
    context: CommandContext,
    addresses: Addresses,
    tenant: Owner = "default",
    reason: Annotated[
        SuppressionReason,
        typer.Option("--reason", metavar="WORD", help=f"One of {', '.join(SuppressionReason)}."),
    ] = (SuppressionReason.MANUAL),
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="A note on the reason.")
    ] = None,
    expires: Expires = None,
) -> None:
    """Add addresses to the list: mails to them fail at once.

    A listed address keeps the stronger reason and the later expiry.

    \b
    Examples:
      pillarbox suppression add ada@mail.example --tenant shop --note "asked by phone"
      pillarbox suppression add a@mail.example b@mail.example --reason unsubscribed --expires 365d
    """
    entries = [
        _entry(
            address,
            reason,
            note,
            expires,
        )
        for address in addresses
    ]
    async with context.app() as app:
        added = await store.add(app.database, (await get_tenant(app.database, tenant)).id, entries)
    _report(context, added)


def _entry(
    address: str,
    reason: SuppressionReason,
    note: str | None,
    expires: datetime | None,
) -> SuppressionEntry:
    """A checked entry; errors name the address."""
    try:
        return checked(
            address,
            reason,
            note,
            expires,
        )
    except InvalidMail as error:
        if error.field != "address":
            raise
        raise InvalidMail(
            error.code,
            error.field,
            f"{address!r} is {error.message}",
            error.hint,
        ) from None


def _report(context: CommandContext, added: SuppressionCounts, refused: int | None = None) -> None:
    counts = added._asdict()
    if refused is not None:
        counts["refused"] = refused
    context.report(counts, ", ".join(f"{count:,} {word}" for word, count in counts.items()))


async def remove(context: CommandContext, addresses: Addresses, tenant: Owner = "default") -> None:
    """Remove addresses from the list: mails are sent to them again.

    Mails that failed meanwhile stay failed: see `pillarbox dlq reprocess --reason suppressed`.

    \b
    Example:
      pillarbox suppression remove ada@mail.example --tenant shop
    """
    async with context.app() as app:
        tenant_id = (await get_tenant(app.database, tenant)).id
        for address in addresses:
            await store.remove(app.database, tenant_id, address)
    context.report({"removed": addresses}, f"{len(addresses)} removed")


async def import_(
    context: CommandContext,
    file: Source,
    tenant: Owner = "default",
    partial: Annotated[
        bool, typer.Option("--partial", help="Add the correct lines even if others have a fault.")
    ] = False,
) -> int:
    """Import addresses from a CSV file.

    Its columns are address, reason, note and expires_at; only the first is required. All lines are
    imported or none, except with --partial. Faults are printed with their lines.

    \b
    Examples:
      pillarbox suppression import unsubscribed.csv --tenant shop
      pillarbox suppression export --tenant old | pillarbox suppression import - --tenant new
    """
    entries, faults = _read(file)
    for fault in faults[:SHOWN]:
        output.error(f"line {fault.line}: {fault.field}: {fault.message}")
    if faults and not partial:
        number = output.counted(len(faults), "line")
        raise NotPossible(
            f"{number} with a fault, and nothing was added (--partial adds the others)"
        )
    async with context.app() as app:
        tenant_id = (await get_tenant(app.database, tenant)).id
        added = await _store(app, tenant_id, entries)
    _report(context, added, len(faults))
    return int(bool(faults))


async def _store(app: App, tenant_id: int, entries: list[SuppressionEntry]) -> SuppressionCounts:
    """Add all in one transaction, with a progress bar."""
    result = store.SuppressionCounts()
    with output.progress() as progress:
        task = progress.add_task("imported", total=len(entries))
        async with app.database.transaction() as connection:
            async for some in store.add_to(connection, tenant_id, entries):
                result = result.plus(some)
                progress.update(task, completed=sum(result))
    return result


def _read(file: Path) -> tuple[list[SuppressionEntry], list[SuppressionFault]]:
    entries: list[SuppressionEntry] = []
    faults: list[SuppressionFault] = []
    try:
        with _opened(file) as lines:
            for item in read(lines):
                if isinstance(item, SuppressionEntry):
                    entries.append(item)
                else:
                    faults.append(item)
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NotPossible(f"{file} is not UTF-8") from None
    return entries, faults


@contextmanager
def _opened(file: Path) -> Iterator[IO[str]]:
    if str(file) == "-":
        yield sys.stdin
        return
    with file.open(encoding="utf-8-sig", newline="") as lines:
        yield lines


async def export(
    context: CommandContext,
    file: Target = None,
    tenant: Owner = "default",
    reason: Why = None,
) -> None:
    """Export the list as CSV for `import`; with --json, as one object per line.

    \b
    Examples:
      pillarbox suppression export --tenant shop > suppressions.csv
      pillarbox suppression export complaints.csv --reason complaint
    """
    async with context.app() as app:
        tenant_id = (await get_tenant(app.database, tenant)).id
        with _writable(file) as target:
            if not context.json:
                target.write(written([COLUMNS]))
            count = 0
            which = store.SuppressionFilter(reason=reason)
            async for page in store.walk(app.database, tenant_id, which):
                target.write(_lines(page, context.json))
                count += len(page)
    if file is not None:
        output.note(f"{output.counted(count, 'address')} written to {file}")


@contextmanager
def _writable(file: Path | None) -> Iterator[IO[str]]:
    if file is None:
        yield sys.stdout
        return
    try:
        target = file.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise NotPossible(f"{file} cannot be written: {error.strerror}") from None
    with target:
        yield target


def _lines(page: Sequence[Suppression], as_json: bool) -> str:
    if as_json:
        return "".join(json.dumps(output.plain(suppression)) + "\n" for suppression in page)
    return written(map(row, page))
