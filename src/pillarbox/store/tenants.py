"""Stored tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

SQL = sql.load("tenants")
# The columns of a tenant that are fields of `Tenant` as they are.
_PLAIN_COLUMNS = (
    "id", "name", "created_at", "default_sender", "default_class", "max_message_bytes",
    "max_recipients", "rate_per_second", "rate_per_hour", "rate_per_day", "content_retention",
    "finished_retention",
)  # fmt: skip


async def list_tenants(database: Database) -> list[Tenant]:
    return [tenant_of(row) for row in await database.fetch(*SQL.list_tenants())]


async def get_tenant(database: Database, name: str) -> Tenant:
    """The tenant of that name, or NotFound."""
    return _found(await database.fetchrow(*SQL.tenant(name=name)), name)


async def add_tenant(database: Database, name: str, **settings: Any) -> Tenant:
    """Add a tenant with these fields of `Tenant`; NotPossible when the name is taken."""
    checked = checked_settings(settings)
    async with database.transaction() as connection:
        if await connection.fetchval(*SQL.add_tenant(name=checked_name(name))) is None:
            raise NotPossible(f"there is a tenant {name!r} already")
        return await _change(connection, name, checked)


async def change_tenant(database: Database, name: str, **settings: Any) -> Tenant:
    """Change these fields of a tenant; returns the changed tenant. NotFound if there is none."""
    checked = checked_settings(settings)
    async with database.transaction() as connection:
        return await _change(connection, name, checked)


async def set_default_sender(database: Database, sender: str) -> None:
    """Set the sender of the default tenant if it has none."""
    await database.execute(*SQL.set_default_sender(sender=sender))


async def _change(connection: asyncpg.Connection, name: str, settings: Mapping[str, Any]) -> Tenant:
    old = _found(await connection.fetchrow(*SQL.lock_tenant(name=name)), name)
    new = replace(old, **settings)
    check_together(new)
    old_ages = old.content_retention, old.finished_retention
    if old_ages != (new.content_retention, new.finished_retention):
        await connection.execute(*SQL.restart_walks())
    try:
        await connection.execute(
            *SQL.change_tenant(
                id=new.id,
                default_sender=new.default_sender,
                default_class=new.default_class,
                order_mode=new.order,
                max_message_bytes=new.max_message_bytes,
                max_recipients=new.max_recipients,
                sender_domains=both_forms(new.sender_domains) or None,
                rate_per_second=new.rate_per_second,
                rate_per_hour=new.rate_per_hour,
                rate_per_day=new.rate_per_day,
                content_retention=new.content_retention,
                finished_retention=new.finished_retention,
            )
        )
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


def tenant_of(row: Mapping[str, Any]) -> Tenant:
    """The tenant of a row that has its columns."""
    return Tenant(
        **{name: row[name] for name in _PLAIN_COLUMNS},
        order=Order(row["order_mode"]),
        sender_domains=ascii_forms(row["sender_domains"]),
    )


def both_forms(patterns: Iterable[str]) -> list[str]:
    """Domains as SQL compares them: internationalised ones in both forms, as SQL has no IDNA."""
    forms: list[str] = []
    for pattern in patterns:
        forms += dict.fromkeys((pattern, _unicode_form(pattern)))
    return forms


def ascii_forms(patterns: Iterable[str] | None) -> tuple[str, ...]:
    """Domains as Python compares them."""
    return tuple(pattern for pattern in patterns or () if pattern.isascii())


def _unicode_form(pattern: str) -> str:
    labels = pattern.split(".")
    for index, label in enumerate(labels):
        if label.startswith("xn--"):
            try:
                labels[index] = idna.decode(label)
            except idna.IDNAError:
                return pattern
    return ".".join(labels)
