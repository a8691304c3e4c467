"""`key`: API keys. A key is shown once, when it is created."""

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
from pillarbox.store.lineage import ExcessiveGrant, RevokedCredentials

if TYPE_CHECKING:
    from pillarbox.app import App

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Its prefix as `key list` shows it, or its name.")
]
Scopes = Annotated[
    list[Scope] | None,
    typer.Option(
        "--scope",
        metavar="SCOPE",
        help="send (default), read, manage; may be repeated. metrics must be alone.",
        show_default=False,
    ),
]


OwningTenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="The tenant that owns it; `default` by default."),
]
AdminFlag = Annotated[
    bool,
    typer.Option(
        "--admin", help="A key for administration, of the whole installation and of no tenant."
    ),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Manage API keys of tenants and administrators.", no_args_is_help=True)
    command(group, "add")(add)
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "revoke")(revoke)
    root.add_typer(group, name="key")


async def add(
    context: CommandContext,
    name: Name,
    tenant: OwningTenant = None,
    scope: Scopes = None,
    sender_domain: Senders = None,
    recipient_domain: Recipients = None,
    expires: Expires = None,
    admin: AdminFlag = False,
) -> None:
    """Add a key and print it. It is shown only once: only its hash is stored.

    \b
    Scopes:
      send     submit mails
      read     read the tenant's messages
      manage   cancel, reschedule, resend; the tenant's own keys and logins
      metrics  only read /metrics of the installation; such a key belongs to no tenant

    \b
    Examples:
      pillarbox key add --tenant shop --name website
      pillarbox key add --tenant shop --name support --scope read --scope manage --expires 90d
      pillarbox key add --tenant lab --name staging --recipient-domain lab.example
      pillarbox key add --admin --name operations
      pillarbox key add --scope metrics --name prometheus
    """
    if admin and (tenant or scope):
        raise typer.BadParameter("an administrator's key has no --tenant and no --scope")
    for_metrics = scope == [Scope.METRICS]
    if for_metrics and tenant:
        raise typer.BadParameter("metrics belong to the whole installation: leave out --tenant")
    owner = tenant or "default"
    scopes = scope or [Scope.SEND]
    if admin:
        scopes = [Scope.ADMIN]
    async with context.app() as app:
        record, secret = await access.add_key(
            app.database,
            None if admin or for_metrics else owner,
            name,
            scopes,
            sender_domains=sender_domain or (),
            recipient_domains=recipient_domain or (),
            expires_at=expires,
        )
    if context.json:
        output.print_json(_public(record) | {"key": secret.reveal()})
    else:
        print(secret.reveal())
        output.note(f"added key {name} of {_owner(record)}; it is shown only once: store it now")


async def list_(
    context: CommandContext,
    tenant: Of = None,
    all_: All = False,
    exceeding: Annotated[
        bool,
        typer.Option(
            "--exceeding", help="List keys and SMTP logins that exceed the key that made them."
        ),
    ] = False,
) -> None:
    """List keys by their prefixes. Only the owner of a key knows the rest of it.

    A key or login that a key makes never exceeds that key. Version 0.1.0 did not ensure this, and
    did not record which key made which: --exceeding lists those that outlive or exceed a key that
    may have made them, so that you can decide.

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
        output.print_json([_public(key) for key in found])
        return
    rows = [_row(key) for key in found]
    heads = ("key", "name", "tenant", "scopes", "last used", "expires", "")
    output.table(heads, rows, "no key: add one with `pillarbox key add`")


def _row(key: ApiKeyRecord) -> tuple[object, ...]:
    return (
        _prefix(key),
        key.name,
        key.tenant or f"({_owner(key)})",
        joined(key.scopes),
        used(key.last_used_at),
        output.when(key.expires_at),
        state(key.expires_at, key.revoked_at),
    )


async def _list_exceeding(app: App, tenant: str | None, as_json: bool) -> None:
    exceeding = await lineage.find_excessive(app.database)
    found = [credential for credential in exceeding if tenant in (None, credential.tenant)]
    if as_json:
        output.print_json([output.plain(credential) for credential in found])
        return
    rows = [_exceeding_row(credential) for credential in found]
    heads = ("kind", "key or login", "name", "tenant", "exceeds in", "key", "made by it")
    output.table(heads, rows, "no key or login exceeds a key that made it, or may have made it")


def _exceeding_row(credential: ExcessiveGrant) -> tuple[object, ...]:
    label = credential.label
    if credential.kind == "key":
        label = f"pbx_{label}"
    made_by_it = "perhaps"
    if credential.certain:
        made_by_it = "yes"
    return (
        credential.kind,
        label,
        credential.name,
        credential.tenant or "(administrators)",
        joined(credential.fields),
        f"{credential.parent_name} (pbx_{credential.parent})",
        made_by_it,
    )


async def show(context: CommandContext, key: Key, tenant: Of = None) -> None:
    """Show a key without its secret.

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
    output.say(Text.assemble((_prefix(found), "bold"), (f" ({found.name})", "dim")))
    output.pairs(
        [
            ("tenant", found.tenant or f"none: belongs to the {_owner(found)}"),
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
        typer.Option("--keep-descendants", help="Keep the keys and logins that it made in force."),
    ] = False,
    yes: options.Yes = False,
) -> None:
    """Revoke a key, and the keys and SMTP logins that it made, at once and forever. Its mails stay.

    \b
    Examples:
      pillarbox key revoke pbx_k3x9q2m7ab
      pillarbox key revoke website --tenant shop --yes
      pillarbox key revoke website --tenant shop --keep-descendants
    """
    async with context.app() as app:
        found = await _find(app, key, tenant)
        if found.revoked_at:
            raise NotPossible(f"{_prefix(found)} was revoked at {output.when(found.revoked_at)}")
        descendants = RevokedCredentials(0, 0)
        if not keep_descendants:
            descendants = await lineage.descendants(app.database, found.id)
        options.confirm(
            f"Revoke the key {found.name} of {_owner(found)}{_describe(descendants)}?", yes
        )
        revoked = await access.revoke_key(app.database, found.id, keep_descendants=keep_descendants)
    result = {
        "prefix": _prefix(found),
        "name": found.name,
        "revoked": True,
        "descendants": {"keys": revoked.keys, "logins": revoked.logins},
    }
    context.report(result, f"revoked {found.name} ({_prefix(found)}){_describe(revoked)}")


def _describe(descendants: RevokedCredentials) -> str:
    """The keys and logins that are revoked with a key; empty without any."""
    if not descendants.keys and not descendants.logins:
        return ""
    keys = output.counted(descendants.keys, "key")
    logins = output.counted(descendants.logins, "SMTP login")
    return f", with {keys} and {logins} made by it"


def _maker(key: ApiKeyRecord) -> str:
    if key.parent is not None:
        return f"the key pbx_{key.parent}"
    return key.made_by or "unknown"


def _owner(key: ApiKeyRecord) -> str:
    """The tenant of a key, or the part of the installation that it belongs to."""
    if key.tenant is not None:
        return key.tenant
    if Scope.ADMIN in key.scopes:
        return "administrators"
    return "installation"


async def _find(app: App, word: str, tenant: str | None) -> ApiKeyRecord:
    """The key with this prefix, or this name."""
    await access_options.check_tenant(app.database, tenant)
    prefix = word.removeprefix("pbx_").partition("_")[0]
    found = await access.list_keys(
        app.database,
        tenant,
        prefix=prefix,
        revoked=True,
    )
    if not found:
        found = await access.list_keys(app.database, tenant, name=word)
    if len(found) > 1:
        raise NotPossible(
            f"several tenants have a key {word!r}: give --tenant, or the key's prefix"
        )
    if not found:
        shown = access_options.without_secret(word)
        raise NotFound(f"the key {shown!r} does not exist: see `pillarbox key list`")
    return found[0]


def _prefix(key: ApiKeyRecord) -> str:
    return f"pbx_{key.prefix}"


def _public(key: ApiKeyRecord) -> dict[str, Any]:
    """A key as JSON."""
    shown: dict[str, Any] = output.plain(key)
    shown["prefix"] = _prefix(key)
    shown["state"] = state(key.expires_at, key.revoked_at)
    return shown
