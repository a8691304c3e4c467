"""`webhook`: endpoints that receive the events of a tenant's mails. A secret is shown once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pillarbox.cli import options, output, webhook_calls
from pillarbox.cli.access_options import Of, Owner
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.webhook_calls import WebhookId, find, tenant_id_of
from pillarbox.errors import NotPossible, RefusedAddress
from pillarbox.model.webhook import CallState, WebhookEventType
from pillarbox.store import tenants, webhooks

if TYPE_CHECKING:
    from pillarbox.app import App
    from pillarbox.store.webhooks import WebhookEndpoint

Url = Annotated[
    str, typer.Argument(metavar="URL", help="The URL to call: https://…, on the public internet.")
]
Kinds = Annotated[
    list[WebhookEventType] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Send only this event, such as message.bounced; may be repeated.",
    ),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Manage webhooks of tenants: calls that report events of mails.", no_args_is_help=True
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
    context: CommandContext,
    url: Url,
    tenant: Owner = "default",
    kind: Kinds = None,
) -> None:
    """Add a webhook and print the secret that signs its calls. It is shown only once.

    \b
    Examples:
      pillarbox webhook add https://shop.example/hooks/mail --tenant shop
      pillarbox webhook add https://shop.example/hooks --kind message.bounced
    """
    async with context.app() as app:
        owner = await tenants.get_tenant(app.database, tenant)
        made, secret = await webhooks.add_endpoint(
            app.database,
            app.keys,
            owner.id,
            _checked(app, url),
            [str(one) for one in kind or ()],
        )
    if context.json:
        output.print_json(public(made) | {"secret": secret.reveal()})
    else:
        output.pairs([("webhook", str(made.id)), ("secret", secret.reveal())])
        output.note(
            f"the secret is shown only once: store it now; then `pillarbox webhook test {made.id}`"
        )


def _checked(app: App, url: str) -> str:
    from pillarbox.track.address_guard import check_url  # only here: aiohttp takes long to import

    try:
        return check_url(url, allow_private=app.settings.webhook_allow_private)
    except RefusedAddress as error:
        hint = ""
        if "public internet" in str(error):
            hint = " For development: PILLARBOX_WEBHOOK_ALLOW_PRIVATE=true"
        raise NotPossible(f"{url!r} cannot be a webhook: {error}.{hint}") from None


async def list_(context: CommandContext, tenant: Of = None) -> None:
    """List webhooks and their status.

    \b
    Examples:
      pillarbox webhook list
      pillarbox webhook list --tenant shop --json
    """
    async with context.app() as app:
        tenant_id = await tenant_id_of(app.database, tenant)
        found = await webhooks.list_endpoints(app.database, tenant_id)
    if context.json:
        output.print_json([public(endpoint) for endpoint in found])
        return
    rows = [
        (
            str(endpoint.id),
            endpoint.tenant,
            endpoint.url,
            _health(endpoint),
            str(endpoint.waiting),
        )
        for endpoint in found
    ]
    heads = ("webhook", "tenant", "url~", "state", "waiting#")
    output.table(heads, rows, "no webhook: add one with `pillarbox webhook add`")


async def show(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> None:
    """Show a webhook without its secret. If the secret was lost, use `webhook rotate`.

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
    context: CommandContext,
    webhook: WebhookId,
    tenant: Of = None,
    yes: options.Yes = False,
) -> None:
    """Remove a webhook with its secret, its log and its waiting calls.

    \b
    Example:
      pillarbox webhook remove 0198c5a2-7d7e --yes
    """
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        options.confirm(f"Remove the webhook {found.id} of {found.tenant}?", yes)
        await webhooks.remove_endpoint(app.database, found.id, found.tenant_id)
    context.report({"id": found.id, "removed": True}, f"removed {found.id}")


async def enable(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> None:
    """Enable a webhook; calls that waited when it was disabled are made at once.

    \b
    Example:
      pillarbox webhook enable 0198c5a2-7d7e
    """
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        await webhooks.enable_endpoint(app.database, found.id, found.tenant_id)
        changed = await webhooks.get_endpoint(app.database, found.id)
    context.report(public(changed), f"enabled {found.id}")


async def disable(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> None:
    """Disable a webhook. Waiting calls are kept; new events are not, until it is enabled.

    \b
    Example:
      pillarbox webhook disable 0198c5a2-7d7e
    """
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        await webhooks.disable_endpoint(app.database, found.id, found.tenant_id)
        changed = await webhooks.get_endpoint(app.database, found.id)
    context.report(public(changed), f"disabled {found.id}")


async def rotate(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> None:
    """Rotate the secret of a webhook and print the new one.

    For a day calls are also signed with the old one.

    \b
    Example:
      pillarbox webhook rotate 0198c5a2-7d7e
    """
    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        secret = await webhooks.rotate_endpoint(
            app.database,
            app.keys,
            found.id,
            found.tenant_id,
        )
        now = await webhooks.get_endpoint(app.database, found.id)
    if context.json:
        output.print_json(public(now) | {"secret": secret.reveal()})
    else:
        print(secret.reveal())
        output.note(
            f"shown only once; the old secret is valid until {output.when(now.old_secret_until)}"
        )


async def try_out(context: CommandContext, webhook: WebhookId, tenant: Of = None) -> int:
    """Test a webhook: call it once, also if it is disabled, and show the result.

    \b
    Example:
      pillarbox webhook test 0198c5a2-7d7e
    """
    from pillarbox.track.webhook_dispatcher import send_test_call  # aiohttp is slow to import

    async with context.app() as app:
        found = await find(app.database, webhook, tenant)
        result = await send_test_call(
            app.database,
            app.keys,
            app.webhook_client(),
            found.id,
            found.tenant_id,
        )
    delivered = result.state is CallState.DELIVERED
    if context.json:
        output.print_json(
            {
                "delivered": delivered,
                "status": result.status,
                "error": result.error,
                "seconds": result.took,
            }
        )
    elif delivered:
        output.say(f"delivered: answered {result.status} within {output.span(result.took)}")
    else:
        output.error(f"not delivered: {result.error}")
    return int(not delivered)


def _health(endpoint: WebhookEndpoint) -> str:
    if not endpoint.enabled:
        return f"disabled ({endpoint.disabled_reason})"
    if endpoint.failing_since is None:
        return "enabled"
    since = output.age(endpoint.failing_since)
    if output.is_terminal():
        return f"failing for {since}"
    return f"failing since {since}"


def public(endpoint: WebhookEndpoint) -> dict[str, Any]:
    """A webhook as JSON."""
    shown: dict[str, Any] = output.plain(endpoint)
    del shown["tenant_id"]
    shown["kinds"] = list(endpoint.kinds or ())
    return shown
