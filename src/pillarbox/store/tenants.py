"""Tenants at rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import asyncpg
import idna

from pillarbox.errors import NotFound, NotPossible, UnknownName
from pillarbox.model.access import Order, Tenant
from pillarbox.model.access_settings import check_together, checked_name, checked_settings
from pillarbox.store import sql

if TYPE_CHECKING:
    from pillarbox.store.database import Database

QUERIES = sql.load("tenants")
# How many columns every query about tenants begins with.
COLUMNS = 14


async def list_tenants(database: Database) -> list[Tenant]:
    return [tenant_of(row) for row in await database.fetch(QUERIES["list_tenants"])]


async def get_tenant(database: Database, name: str) -> Tenant:
    """The tenant of that name, or NotFound."""
    return _found(await database.fetchrow(QUERIES["tenant"], name), name)


async def add_tenant(database: Database, name: str, **settings: Any) -> Tenant:
    """Add a tenant with these fields of `Tenant`; NotPossible when the name is taken."""
    checked = checked_settings(settings)
    async with database.transaction() as connection:
        if await connection.fetchval(QUERIES["add_tenant"], checked_name(name)) is None:
            raise NotPossible(f"there is a tenant {name!r} already")
        return await _change(connection, name, checked)


async def change_tenant(database: Database, name: str, **settings: Any) -> Tenant:
    """Change these fields of a tenant, and no others; returns what it is now. NotFound if there is none."""
    checked = checked_settings(settings)
    async with database.transaction() as connection:
        return await _change(connection, name, checked)


async def set_default_sender(database: Database, sender: str) -> None:
    """Give the default tenant a sender where it has none."""
    await database.execute(QUERIES["set_default_sender"], sender)


async def _change(connection: asyncpg.Connection, name: str, settings: Mapping[str, Any]) -> Tenant:
    old = _found(await connection.fetchrow(QUERIES["lock_tenant"], name), name)
    new = replace(old, **settings)
    check_together(new)
    if (new.content_retention, new.finished_retention) != (
        old.content_retention,
        old.finished_retention,
    ):
        await connection.execute(QUERIES["walk_anew"])
    try:
        await connection.execute(
            QUERIES["change_tenant"], new.id, new.default_sender, new.default_class, new.order, new.max_message_bytes,
            new.max_recipients, both_forms(new.sender_domains) or None, new.rate_per_second, new.rate_per_hour,
            new.rate_per_day, new.content_retention, new.finished_retention,
        )  # fmt: skip
    except asyncpg.ForeignKeyViolationError:
        raise UnknownName(
            "unknown_class",
            "default_class",
            f"there is no class {new.default_class!r}",
            "see: pillarbox class list",
        ) from None
    return new


def _found(row: asyncpg.Record | None, name: str) -> Tenant:
    if row is None:
        raise NotFound(f"there is no tenant {name!r}: see `pillarbox tenant list`")
    return tenant_of(row)


def tenant_of(row: Sequence[Any]) -> Tenant:
    """The tenant whose columns a row begins with."""
    values = list(row[:COLUMNS])
    values[5], values[8] = Order(values[5]), ascii_forms(values[8])
    return Tenant(*values)


def both_forms(patterns: Iterable[str]) -> list[str]:
    """Domains as SQL compares them: an internationalised one in both its forms, since SQL knows no IDNA."""
    return [form for one in patterns for form in dict.fromkeys((one, _unicode_form(one)))]


def ascii_forms(patterns: Iterable[str] | None) -> tuple[str, ...]:
    """Domains as Python compares them."""
    return tuple(one for one in patterns or () if one.isascii())


def _unicode_form(pattern: str) -> str:
    try:
        return ".".join(
            idna.decode(label) if label.startswith("xn--") else label
            for label in pattern.split(".")
        )
    except idna.IDNAError:
        return pattern
