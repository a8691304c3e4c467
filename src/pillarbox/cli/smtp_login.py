"""`smtp-login`: user names and passwords for SMTP submission. A password is shown when it is made, and never again."""

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
    group = typer.Typer(help="SMTP logins of tenants.", no_args_is_help=True)
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
    """Make a user name and a password, and print both. The password is shown this once: only a hash of it is kept.

    \b
    Examples:
      pillarbox smtp-login add --tenant shop --name printer
      pillarbox smtp-login add --tenant shop --name crm --sender-domain shop.example --expires 365d --json
    """
    async with context.app() as app:
        facts, password = await access.add_login(
            app.database, tenant, name, sender_domains=sender_domain or (), recipient_domains=recipient_domain or (),
            expires_at=expires,
        )  # fmt: skip
    if context.json:
        output.print_json(_public(facts) | {"password": password.reveal()})
    else:
        output.pairs([("username", facts.username), ("password", password.reveal())])
        output.note("the password is shown this once: keep it now")


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
        output.print_json([_public(one) for one in found])
        return
    rows = [
        (one.username, joined(one.sender_domains) or "any", joined(one.recipient_domains) or "any",
         used(one.last_used_at), output.when(one.expires_at), state(one.expires_at, one.revoked_at))
        for one in found
    ]  # fmt: skip
    heads = ("username", "senders~", "recipients~", "last used", "expires", "")
    output.table(heads, rows, "no login: make one with `pillarbox smtp-login add`")


async def revoke(context: CommandContext, username: Username, yes: options.Yes = False) -> None:
    """Take a login out of force, at once and for good. What it handed over stays.

    \b
    Example:
      pillarbox smtp-login revoke printer@shop --yes
    """
    async with context.app() as app:
        found = await access.list_logins(app.database, username=username)
        if not found:
            raise NotFound(
                f"there is no login {username!r} in force: see `pillarbox smtp-login list`"
            )
        options.confirm(f"Revoke the login {username}?", yes)
        await access.revoke_login(app.database, found[0].id)
    output.print_json({"username": username, "revoked": True}) if context.json else output.say(
        f"revoked {username}"
    )


def _public(facts: SmtpLoginRecord) -> dict[str, Any]:
    """A login as it may be shown."""
    shown: dict[str, Any] = output.plain(facts)
    return shown | {"state": state(facts.expires_at, facts.revoked_at)}
