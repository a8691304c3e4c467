"""`key`: API keys. A key is shown when it is made, and never again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pillarbox.cli import access_options, options, output
from pillarbox.cli.access_options import (
    All,
    Expires,
    Name,
    Of,
    Recipients,
    Senders,
    joined,
    state,
    used,
)
from pillarbox.cli.command import CommandContext, command
from pillarbox.errors import NotFound, NotPossible
from pillarbox.model.access import Scope
from pillarbox.store import access, lineage
from pillarbox.store.access import ApiKeyRecord
from pillarbox.store.lineage import RevokedCredentials

if TYPE_CHECKING:
    from pillarbox.app import App

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Its beginning as `key list` shows it, or its name.")
]
Scopes = Annotated[
    list[Scope] | None,
    typer.Option(
        "--scope",
        metavar="SCOPE",
        help="send (default), read, manage; may be repeated. metrics: alone.",
        show_default=False,
    ),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="API keys of tenants and administrators.", no_args_is_help=True)
    command(group, "add")(add)
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "revoke")(revoke)
    root.add_typer(group, name="key")


async def add(
    context: CommandContext,
    name: Name,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", help="Whose it is; `default` when not given."),
    ] = None,
    scope: Scopes = None,
    sender_domain: Senders = None,
    recipient_domain: Recipients = None,
    expires: Expires = None,
    admin: Annotated[
        bool,
        typer.Option(
            "--admin", help="An administrator's, of the whole installation and of no tenant."
        ),
    ] = False,
) -> None:
    """Make a key and print it. It is shown this once: only a hash of it is kept.

    \b
    Scopes:
      send     hand mails over
      read     see the tenant's messages
      manage   cancel, reschedule, resend; the tenant's own keys and logins
      metrics  read /metrics of the installation; such a key belongs to no tenant and does nothing else

    \b
    Examples:
      pillarbox key add --tenant shop --name website
      pillarbox key add --tenant shop --name support --scope read --scope manage --expires 90d
      pillarbox key add --tenant lab --name staging --sender-domain lab.example --recipient-domain lab.example
      pillarbox key add --admin --name operations
      pillarbox key add --scope metrics --name prometheus
    """
    if admin and (tenant or scope):
        raise typer.BadParameter("an administrator's key has no --tenant and no --scope")
    for_metrics = scope == [Scope.METRICS]
    if for_metrics and tenant:
        raise typer.BadParameter("metrics are those of the whole installation: leave out --tenant")
    owner = None if admin or for_metrics else tenant or "default"
    scopes = [Scope.ADMIN] if admin else scope or [Scope.SEND]
    async with context.app() as app:
        facts, secret = await access.add_key(
            app.database, owner, name, scopes, sender_domains=sender_domain or (),
            recipient_domains=recipient_domain or (), expires_at=expires,
        )  # fmt: skip
    if context.json:
        output.print_json(_public(facts) | {"key": secret.reveal()})
    else:
        print(secret.reveal())
        output.note(f"made key {name} of {_owner(facts)}; it is shown this once: keep it now")


async def list_(
    context: CommandContext,
    tenant: Of = None,
    all_: All = False,
    exceeding: Annotated[
        bool,
        typer.Option(
            "--exceeding", help="Keys and SMTP logins that exceed the key that made them."
        ),
    ] = False,
) -> None:
    """List keys by their beginnings. The rest of a key is known to nobody but its owner.

    A key or login that a key makes never exceeds it. Version 0.1.0 did not ensure that, and did not
    record which key made which: --exceeding lists those that outlive or exceed a key that may have
    made them, for you to decide.

    \b
    Examples:
      pillarbox key list
      pillarbox key list --tenant shop --all
      pillarbox key list --exceeding
    """
    async with context.app() as app:
        await access_options.check_tenant(app.database, tenant)
        if exceeding:
            await _list_exceeding(app, tenant, context.json)
            return
        found = await access.list_keys(app.database, tenant, revoked=all_)
    if context.json:
        output.print_json([_public(one) for one in found])
        return
    rows = [
        (_beginning(one), one.name, one.tenant or f"({_owner(one)})", joined(one.scopes), used(one.last_used_at),
         output.when(one.expires_at), state(one.expires_at, one.revoked_at))
        for one in found
    ]  # fmt: skip
    heads = ("key", "name", "tenant", "scopes", "last used", "expires", "")
    output.table(heads, rows, "no key: make one with `pillarbox key add`")


async def _list_exceeding(app: App, tenant: str | None, as_json: bool) -> None:
    found = [
        one for one in await lineage.find_excessive(app.database) if tenant in (None, one.tenant)
    ]
    if as_json:
        output.print_json([output.plain(one) for one in found])
        return
    rows = [
        (one.kind, f"pbx_{one.label}" if one.kind == "key" else one.label, one.name, one.tenant or "(administrators)",
         joined(one.fields), f"{one.parent_name} (pbx_{one.parent})", "yes" if one.certain else "perhaps")
        for one in found
    ]  # fmt: skip
    heads = ("kind", "key or login", "name", "tenant", "exceeds in", "key", "made by it")
    output.table(heads, rows, "no key or login exceeds a key that made it, or may have made it")


async def show(context: CommandContext, key: Key, tenant: Of = None) -> None:
    """Show what is known of a key.

    \b
    Examples:
      pillarbox key show pbx_k3x9q2m7ab
      pillarbox key show website --tenant shop --json
    """
    async with context.app() as app:
        found = await _find(app, key, tenant)
    if context.json:
        output.print_json(_public(found))
        return
    output.say(Text.assemble((_beginning(found), "bold"), (f" ({found.name})", "dim")))
    output.pairs(
        [
            ("tenant", found.tenant or f"none: of the {_owner(found)}"),
            ("scopes", joined(found.scopes)),
            ("senders", joined(found.sender_domains) or "any"),
            ("recipients", joined(found.recipient_domains) or "any"),
            ("state", state(found.expires_at, found.revoked_at)),
            ("last used", used(found.last_used_at)),
            ("made", output.when(found.created_at)),
            ("made by", _maker(found)),
            ("expires", output.when(found.expires_at)),
            ("revoked", output.when(found.revoked_at)),
        ]
    )


async def revoke(
    context: CommandContext,
    key: Key,
    tenant: Of = None,
    keep_descendants: Annotated[
        bool,
        typer.Option("--keep-descendants", help="Leave the keys and logins in force that it made."),
    ] = False,
    yes: options.Yes = False,
) -> None:
    """Revoke a key, and the keys and SMTP logins that it made, at once and for good. What it handed over stays.

    \b
    Examples:
      pillarbox key revoke pbx_k3x9q2m7ab
      pillarbox key revoke website --tenant shop --yes
      pillarbox key revoke website --tenant shop --keep-descendants
    """
    async with context.app() as app:
        found = await _find(app, key, tenant)
        if found.revoked_at:
            raise NotPossible(f"{_beginning(found)} was revoked at {output.when(found.revoked_at)}")
        made = (
            RevokedCredentials(0, 0)
            if keep_descendants
            else await lineage.descendants(app.database, found.id)
        )
        options.confirm(
            f"Revoke the key {found.name} of {_owner(found)}{_with_descendants(made)}?", yes
        )
        made = await access.revoke_key(app.database, found.id, keep_descendants=keep_descendants)
    if context.json:
        told = {"prefix": _beginning(found), "name": found.name, "revoked": True}
        output.print_json(told | {"descendants": {"keys": made.keys, "logins": made.logins}})
    else:
        output.say(f"revoked {found.name} ({_beginning(found)}){_with_descendants(made)}")


def _with_descendants(made: RevokedCredentials) -> str:
    """The keys and logins that are revoked with a key, in words; empty if there are none."""
    if not made.keys and not made.logins:
        return ""
    return f", with {output.counted(made.keys, 'key')} and {output.counted(made.logins, 'SMTP login')} made by it"


def _maker(facts: ApiKeyRecord) -> str:
    if facts.parent is not None:
        return f"the key pbx_{facts.parent}"
    return facts.made_by or "not known"


def _owner(key: ApiKeyRecord) -> str:
    """Whose it is: a tenant's, or of no tenant."""
    if key.tenant is not None:
        return key.tenant
    return "administrators" if Scope.ADMIN in key.scopes else "installation"


async def _find(app: App, word: str, tenant: str | None) -> ApiKeyRecord:
    """The key with this beginning, or this name."""
    await access_options.check_tenant(app.database, tenant)
    beginning = word.removeprefix("pbx_").partition("_")[0]
    found = await access.list_keys(app.database, tenant, prefix=beginning, revoked=True)
    found = found or await access.list_keys(app.database, tenant, name=word)
    if len(found) > 1:
        raise NotPossible(
            f"several tenants have a key {word!r}: give --tenant, or the key's beginning"
        )
    if not found:
        raise NotFound(
            f"there is no key {access_options.without_secret(word)!r}: see `pillarbox key list`"
        )
    return found[0]


def _beginning(facts: ApiKeyRecord) -> str:
    return f"pbx_{facts.prefix}"


def _public(facts: ApiKeyRecord) -> dict[str, Any]:
    """A key as it may be shown."""
    shown: dict[str, Any] = output.plain(facts)
    return shown | {"prefix": _beginning(facts), "state": state(facts.expires_at, facts.revoked_at)}
