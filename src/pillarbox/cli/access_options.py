"""What `key` and `smtp-login` share: whose they are, what restricts them, until when."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pillarbox.cli import options, output
from pillarbox.store import tenants

if TYPE_CHECKING:
    from pillarbox.store.database import Database

Owner = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose it is.")]
Of = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="Only of this tenant.", show_default=False),
]
Name = Annotated[
    str,
    typer.Option(
        "--name", parser=options.name, metavar="NAME", help="What to call it; unique in its tenant."
    ),
]
Senders = Annotated[
    list[str] | None,
    typer.Option(
        "--sender-domain",
        metavar="DOMAIN",
        help="Only from here: example.com, *.example.com; repeatable.",
    ),
]
Recipients = Annotated[
    list[str] | None,
    typer.Option("--recipient-domain", metavar="DOMAIN", help="Only to here; repeatable."),
]


def _expiry(value: str) -> datetime:
    at = options.future(value)
    if at <= options.past("0s"):
        raise typer.BadParameter(
            f"{value!r} is over: give a time to come, or a duration such as 90d"
        )
    return at


Expires = Annotated[
    datetime | None,
    typer.Option(
        "--expires",
        parser=_expiry,
        metavar="TIME",
        help="When it ends: a time, or in 90d; never when not given.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Revoked ones, too.")]


def state(expires_at: datetime | None, revoked_at: datetime | None) -> str:
    """Whether it still opens a door."""
    if revoked_at:
        return "revoked"
    return "expired" if expires_at and expires_at <= options.past("0s") else "in force"


async def check_tenant(database: Database, name: str | None) -> None:
    """Raise NotFound for a tenant that is not there: an empty list would not say so."""
    if name is not None:
        await tenants.get_tenant(database, name)


def joined(values: tuple[str, ...]) -> str:
    return ", ".join(values)


def used(at: datetime | None) -> str:
    return output.when(at) or "never"


def without_secret(word: str) -> str:
    """What was typed, but no more of a whole key than its public beginning."""
    return "_".join(word.split("_")[:2]) if word.startswith("pbx_") else word
