"""`webhook`: where tenants are told what becomes of their mails. A secret is shown when it is made, and never again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pillarbox.cli import options, output, webhook_calls
from pillarbox.cli.access_options import Of, Owner
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.webhook_calls import WebhookId, find
from pillarbox.errors import NotPossible, RefusedAddress
from pillarbox.model.webhook import CallState, WebhookEventType
from pillarbox.store import tenants, webhooks

if TYPE_CHECKING:
    from pillarbox.app import App
    from pillarbox.store.webhooks import WebhookEndpoint

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Where to call: https://…, on the public internet.")
]
Kinds = Annotated[
    list[WebhookEventType] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Tell only of this, such as message.bounced; may be repeated.",
    ),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Webhooks of tenants: calls that tell what became of a mail.", no_args_is_help=True
    )
    command(group, "add")(add)
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "remove")(remove)
    command(group, "enable")(enable)
    command(group, "disable")(disable)
    command(group, "rotate")(rotate)
    command(group, "test")(try_out)
    webhook_calls.register(group)
    root.add_typer(group, name="webhook")


async def add(
    context: CommandContext, url: Url, tenant: Owner = "default", kind: Kinds = None
) -> None:
    """Add a webhook and print the secret that its calls are signed with. It is shown this once.

    \b
    Examples:
      pillarbox webhook add https://shop.example/hooks/mail --tenant shop
      pillarbox webhook add https://shop.example/hooks --kind message.bounced --kind message.complained
    """
    async with context.app() as app:
        owner = await tenants.get_tenant(app.database, tenant)
        made, secret = await webhooks.add_endpoint(
            app.database, app.keys, owner.id, _checked(app, url), [str(one) for one in kind or ()]
        )
    if context.json:
        output.print_json(public(made) | {"secret": secret.reveal()})
    else:
        output.pairs([("webhook", str(made.id)), ("secret", secret.reveal())])
        output.note(
            f"the secret is shown this once: keep it now; then `pillarbox webhook test {made.id}`"
        )


def _checked(app: App, url: str) -> str:
    from pillarbox.track.address_guard import check_url  # only here: aiohttp takes long to import

    try:
        return check_url(url, allow_private=app.settings.webhook_allow_private)
    except RefusedAddress as error:
        hint = (
            " For development: PILLARBOX_WEBHOOK_ALLOW_PRIVATE=true"
            if "public internet" in str(error)
            else ""
        )
        raise NotPossible(f"{url!r} cannot be a webhook: {error}.{hint}") from None


async def list_(context: CommandContext, tenant: Of = None) -> None:
    """List webhooks, and how they do.

    \b
    Examples:
      pillarbox webhook list
      pillarbox webhook list --tenant shop --json
    """
    async with context.app() as app:
        owner = await tenants.get_tenant(app.database, tenant) if tenant else None
        found = await webhooks.list_endpoints(app.database, owner.id if owner else None)
    if context.json:
        output.print_json([public(one) for one in found])
        return
    rows = [(str(one.id), one.tenant, one.url, _health(one), str(one.waiting)) for one in found]
    heads = ("webhook", "tenant", "url~", "state", "waiting#")
    output.table(heads, rows, "no webhook: add one with `pillarbox webhook add`")


async def show(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> None:
    """Show a webhook. Its secret is not shown: make a new one with `webhook rotate` if it was lost.

    \b
    Example:
      pillarbox webhook show 0198c5a2-7d7e
    """
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
    if context.json:
        output.print_json(public(found))
        return
    output.say(Text.assemble((str(found.id), "bold")))
    output.pairs(
        [
            ("url", found.url),
            ("tenant", found.tenant),
            ("kinds", ", ".join(found.kinds or ()) or "all"),
            ("state", _health(found)),
            ("waiting", str(found.waiting)),
            ("disabled", output.when(found.disabled_at)),
            ("failing since", output.when(found.failing_since)),
            ("added", output.when(found.created_at)),
            ("old secret until", output.when(found.old_secret_until)),
        ]
    )


async def remove(
    context: CommandContext, webhook: WebhookId, tenant: Of = None, yes: options.Yes = False
) -> None:
    """Forget a webhook, with its secret, its log and the calls that wait.

    \b
    Example:
      pillarbox webhook remove 0198c5a2-7d7e --yes
    """
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        options.confirm(f"Remove the webhook {found.id} of {found.tenant}?", yes)
        await webhooks.remove_endpoint(app.database, found.id, found.tenant_id)
    output.print_json({"id": found.id, "removed": True}) if context.json else output.say(
        f"removed {found.id}"
    )


async def enable(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> None:
    """Call a webhook again; calls that waited when it was disabled are made at once.

    \b
    Example:
      pillarbox webhook enable 0198c5a2-7d7e
    """
    await _switch(context, webhook, tenant, True)


async def disable(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> None:
    """Stop calling a webhook. What waits is kept; nothing new is, until it is enabled.

    \b
    Example:
      pillarbox webhook disable 0198c5a2-7d7e
    """
    await _switch(context, webhook, tenant, False)


async def _switch(context: CommandContext, webhook: str, tenant: str | None, on: bool) -> None:
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        change = webhooks.enable_endpoint if on else webhooks.disable_endpoint
        await change(app.database, found.id, found.tenant_id)
        now = await webhooks.get_endpoint(app.database, found.id)
    output.print_json(public(now)) if context.json else output.say(
        f"{'enabled' if on else 'disabled'} {found.id}"
    )


async def rotate(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> None:
    """Make a new secret and print it. For a day calls are signed with the old one, too.

    \b
    Example:
      pillarbox webhook rotate 0198c5a2-7d7e
    """
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        secret = await webhooks.rotate_endpoint(app.database, app.keys, found.id, found.tenant_id)
        now = await webhooks.get_endpoint(app.database, found.id)
    if context.json:
        output.print_json(public(now) | {"secret": secret.reveal()})
    else:
        print(secret.reveal())
        output.note(
            f"shown this once; the old secret counts until {output.when(now.old_secret_until)}"
        )


async def try_out(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> int:
    """Call a webhook once, now, and say how it went; even while it is disabled.

    \b
    Example:
      pillarbox webhook test 0198c5a2-7d7e
    """
    from pillarbox.track.webhook_dispatcher import send_test_call  # aiohttp is slow to import

    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        result = await send_test_call(
            app.database, app.keys, app.webhook_client(), found.id, found.tenant_id
        )
    delivered = result.state is CallState.DELIVERED
    if context.json:
        told = {
            "delivered": delivered,
            "status": result.status,
            "error": result.error,
            "seconds": result.took,
        }
        output.print_json(told)
    elif delivered:
        output.say(f"delivered: answered {result.status} within {output.span(result.took)}")
    else:
        output.error(f"not delivered: {result.error}")
    return 0 if delivered else 1


def _health(one: WebhookEndpoint) -> str:
    if not one.enabled:
        return f"disabled ({one.disabled_reason})"
    if one.failing_since is None:
        return "enabled"
    return f"failing {'for' if output.is_terminal() else 'since'} {output.age(one.failing_since)}"


def public(one: WebhookEndpoint) -> dict[str, Any]:
    """A webhook as it may be shown."""
    shown: dict[str, Any] = output.plain(one)
    del shown["tenant_id"]
    return shown | {"kinds": list(one.kinds or ())}
