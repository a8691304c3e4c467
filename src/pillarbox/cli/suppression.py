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
# Faults that are printed: whoever has more needs another file, not a longer list.
SHOWN = 20
Addresses = Annotated[
    list[str], typer.Argument(metavar="ADDRESS…", help="Bare addresses; the case does not matter.")
]
Why = Annotated[
    SuppressionReason | None,
    typer.Option("--reason", metavar="WORD", help="Only with this reason."),
]
Source = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="CSV in UTF-8, or - for standard input.", allow_dash=True),
]
Target = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="Where to write; standard output if not given."),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Suppression lists: addresses that mails are not sent to.", no_args_is_help=True
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
        str | None, typer.Option("--address", metavar="ADDRESS", help="Only this address.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="Addresses that begin so.")
    ] = None,
    reason: Why = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ADDRESS", help="Those after this one: the next page."),
    ] = None,
    limit: options.Limit = 20,
) -> None:
    """List suppressed addresses in their order. What has expired is left out.

    \b
    Examples:
      pillarbox suppression list --tenant shop
      pillarbox suppression list --address ada@mail.example --json
      pillarbox suppression list --reason complaint --limit 100
    """
    async with context.app() as app:
        found = [
            one
            async for one in _some(
                app, tenant, address, store.SuppressionFilter(prefix, reason, after), limit
            )
        ]
    if context.json:
        output.print_json(found)
        return
    rows = [(one.address, one.reason, output.when(one.created_at), output.when(one.expires_at), one.note)
            for one in found]  # fmt: skip
    output.table(("address", "reason", "since", "expires", "note~"), rows, "no address fits")
    if len(found) == limit:
        output.note(f"there may be more: add --after {found[-1].address}")


async def _some(
    app: App, tenant: str, address: str | None, which: store.SuppressionFilter, limit: int
) -> AsyncIterator[Suppression]:
    tenant_id = (await get_tenant(app.database, tenant)).id
    if address is not None:
        if one := await store.find(app.database, tenant_id, address):
            yield one
        return
    async for some in store.walk(app.database, tenant_id, which):
        for one in some[:limit]:
            yield one
        limit -= len(some)
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
        str | None, typer.Option("--note", metavar="TEXT", help="For whoever wonders why.")
    ] = None,
    expires: Expires = None,
) -> None:
    """Suppress addresses: mails to them fail at once. One that is there keeps the stronger reason and later expiry.

    \b
    Examples:
      pillarbox suppression add ada@mail.example --tenant shop --note "asked by phone"
      pillarbox suppression add a@mail.example b@mail.example --reason unsubscribed --expires 365d
    """
    entries = [_entry(address, reason, note, expires) for address in addresses]
    async with context.app() as app:
        added = await store.add(app.database, (await get_tenant(app.database, tenant)).id, entries)
    _tell(context, added)


def _entry(
    address: str, reason: SuppressionReason, note: str | None, expires: datetime | None
) -> SuppressionEntry:
    """An entry; what is wrong with one of several addresses says which."""
    try:
        return checked(address, reason, note, expires)
    except InvalidMail as error:
        if error.field != "address":
            raise
        raise InvalidMail(
            error.code, error.field, f"{address!r} is {error.message}", error.hint
        ) from None


def _tell(context: CommandContext, added: SuppressionCounts, refused: int | None = None) -> None:
    more = {} if refused is None else {"refused": refused}
    if context.json:
        output.print_json(added._asdict() | more)
    else:
        output.say(
            ", ".join(f"{count:,} {word}" for word, count in (added._asdict() | more).items())
        )


async def remove(context: CommandContext, addresses: Addresses, tenant: Owner = "default") -> None:
    """Take addresses off the list: mails are sent to them again.

    What failed meanwhile stays failed: see `pillarbox dlq reprocess --reason suppressed`.

    \b
    Example:
      pillarbox suppression remove ada@mail.example --tenant shop
    """
    async with context.app() as app:
        tenant_id = (await get_tenant(app.database, tenant)).id
        for address in addresses:
            await store.remove(app.database, tenant_id, address)
    output.print_json({"removed": addresses}) if context.json else output.say(
        f"{len(addresses)} removed"
    )


async def import_(
    context: CommandContext,
    file: Source,
    tenant: Owner = "default",
    partial: Annotated[
        bool, typer.Option("--partial", help="Add the good lines even if others have a fault.")
    ] = False,
) -> int:
    """Add a file of addresses: CSV with the columns address, reason, note, expires_at; only the first is needed.

    All or none, unless --partial is given. Faults are told by their lines.

    \b
    Examples:
      pillarbox suppression import unsubscribed.csv --tenant shop
      pillarbox suppression export --tenant old | pillarbox suppression import - --tenant new
    """
    entries, faults = _read(file)
    for one in faults[:SHOWN]:
        output.error(f"line {one.line}: {one.field}: {one.message}")
    if faults and not partial:
        raise NotPossible(
            f"{output.counted(len(faults), 'line')} with a fault, and nothing was added (--partial adds the others)"
        )
    async with context.app() as app:
        tenant_id = (await get_tenant(app.database, tenant)).id
        added = await _store(app, tenant_id, entries)
    _tell(context, added, len(faults))
    return 1 if faults else 0


async def _store(app: App, tenant_id: int, entries: list[SuppressionEntry]) -> SuppressionCounts:
    """Add all in one transaction, and show how far it is."""
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
            for one in read(lines):
                entries.append(one) if isinstance(one, SuppressionEntry) else faults.append(one)
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
    context: CommandContext, file: Target = None, tenant: Owner = "default", reason: Why = None
) -> None:
    """Write the list as CSV, as `import` takes it; with --json, one object on each line.

    \b
    Examples:
      pillarbox suppression export --tenant shop > suppressions.csv
      pillarbox suppression export complaints.csv --reason complaint
    """
    async with context.app() as app:
        tenant_id = (await get_tenant(app.database, tenant)).id
        with _writable(file) as target:
            target.write("" if context.json else written([COLUMNS]))
            count = 0
            async for some in store.walk(
                app.database, tenant_id, store.SuppressionFilter(reason=reason)
            ):
                target.write(_lines(some, context.json))
                count += len(some)
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


def _lines(some: Sequence[Suppression], as_json: bool) -> str:
    if as_json:
        return "".join(json.dumps(output.plain(one)) + "\n" for one in some)
    return written(map(row, some))
