"""Options that `key` and `smtp-login` share: owner, restrictions, expiry."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pillarbox.cli import options, output
from pillarbox.store import tenants

if TYPE_CHECKING:
    from pillarbox.store.database import Database

Owner = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant that owns it.")]
Of = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Show only this tenant's.",
        show_default=False,
    ),
]
Name = Annotated[
    str,
    typer.Option(
        "--name",
        parser=options.name,
        metavar="NAME",
        help="Its name, unique in its tenant.",
    ),
]
Senders = Annotated[
    list[str] | None,
    typer.Option(
        "--sender-domain",
        metavar="DOMAIN",
        help="Allow only these senders: example.com, *.example.com; may be repeated.",
    ),
]
Recipients = Annotated[
    list[str] | None,
    typer.Option(
        "--recipient-domain", metavar="DOMAIN", help="Allow only these recipients; may be repeated."
    ),
]


def _expiry(value: str) -> datetime:
    at = options.future(value)
    if at <= options.past("0s"):
        raise typer.BadParameter(
            f"{value!r} is in the past: give a future time, or a duration such as 90d"
        )
    return at


Expires = Annotated[
    datetime | None,
    typer.Option(
        "--expires",
        parser=_expiry,
        metavar="TIME",
        help="Its expiry: a time, or a duration such as 90d; never by default.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Include revoked ones.")]


def state(expires_at: datetime | None, revoked_at: datetime | None) -> str:
    """Whether a credential is in force, expired or revoked."""
    if revoked_at:
        return "revoked"
    if expires_at and expires_at <= options.past("0s"):
        return "expired"
    return "in force"


async def check_tenant(database: Database, name: str | None) -> None:
    """Raise NotFound for an unknown tenant; an empty list would hide the mistake."""
    if name is not None:
        await tenants.get_tenant(database, name)


def joined(values: tuple[str, ...]) -> str:
    return ", ".join(values)


def used(at: datetime | None) -> str:
    return output.when(at) or "never"


def without_secret(word: str) -> str:
    """The typed word; of a whole key, its public prefix only."""
    if not word.startswith("pbx_"):
        return word
    return "_".join(word.split("_")[:2])
