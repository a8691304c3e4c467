"""`smtp-login`: credentials for SMTP submission. A password is shown once, when it is created."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pillarbox.cli import access_options, options, output
from pillarbox.cli.access_options import (
    All,
    Expires,
    Name,
    Of,
    Owner,
    Recipients,
    Senders,
    joined,
    state,
    used,
)
from pillarbox.cli.command import CommandContext, command
from pillarbox.errors import NotFound
from pillarbox.store import access
from pillarbox.store.access import SmtpLoginRecord

Username = Annotated[
    str, typer.Argument(metavar="USERNAME", help="As `smtp-login list` shows it: name@tenant.")
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Manage SMTP logins of tenants.", no_args_is_help=True)
    command(group, "add")(add)
    command(group, "list")(list_)
    command(group, "revoke")(revoke)
    root.add_typer(group, name="smtp-login")


async def add(
    context: CommandContext,
    name: Name,
    tenant: Owner = "default",
    sender_domain: Senders = None,
    recipient_domain: Recipients = None,
    expires: Expires = None,
) -> None:
    """Add a login and print its user name and password.

    The password is shown only once: only its hash is stored.

    \b
    Examples:
      pillarbox smtp-login add --tenant shop --name printer
      pillarbox smtp-login add --tenant shop --name crm --expires 365d --json
    """
    async with context.app() as app:
        facts, password = await access.add_login(
            app.database,
            tenant,
            name,
            sender_domains=sender_domain or (),
            recipient_domains=recipient_domain or (),
            expires_at=expires,
        )
    if context.json:
        output.print_json(_public(facts) | {"password": password.reveal()})
    else:
        output.pairs([("username", facts.username), ("password", password.reveal())])
        output.note("the password is shown only once: store it now")


async def list_(context: CommandContext, tenant: Of = None, all_: All = False) -> None:
    """List logins by their user names.

    \b
    Examples:
      pillarbox smtp-login list
      pillarbox smtp-login list --tenant shop --all
    """
    async with context.app() as app:
        await access_options.check_tenant(app.database, tenant)
        found = await access.list_logins(app.database, tenant, revoked=all_)
    if context.json:
        output.print_json([_public(login) for login in found])
        return
    rows = [_row(login) for login in found]
    heads = ("username", "senders~", "recipients~", "last used", "expires", "")
    output.table(heads, rows, "no login: add one with `pillarbox smtp-login add`")


def _row(login: SmtpLoginRecord) -> tuple[object, ...]:
    return (
        login.username,
        joined(login.sender_domains) or "any",
        joined(login.recipient_domains) or "any",
        used(login.last_used_at),
        output.when(login.expires_at),
        state(login.expires_at, login.revoked_at),
    )


async def revoke(context: CommandContext, username: Username, yes: options.Yes = False) -> None:
    """Revoke a login, at once and forever. Its mails stay.

    \b
    Example:
      pillarbox smtp-login revoke printer@shop --yes
    """
    async with context.app() as app:
        found = await access.list_logins(app.database, username=username)
        if not found:
            raise NotFound(f"no login {username!r} is in force: see `pillarbox smtp-login list`")
        options.confirm(f"Revoke the login {username}?", yes)
        await access.revoke_login(app.database, found[0].id)
    context.report({"username": username, "revoked": True}, f"revoked {username}")


def _public(login: SmtpLoginRecord) -> dict[str, Any]:
    """A login as JSON."""
    shown: dict[str, Any] = output.plain(login)
    shown["state"] = state(login.expires_at, login.revoked_at)
    return shown
