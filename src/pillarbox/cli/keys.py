"""`keys`: the keys that encrypt provider secrets."""

from __future__ import annotations

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext, command
from pillarbox.store import providers, webhooks
from pillarbox.store.vault import generate_key


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Manage the keys that encrypt provider secrets.", no_args_is_help=True)
    command(group, "generate", store=False)(generate)
    command(group, "rotate")(rotate)
    root.add_typer(group, name="keys")


async def generate(context: CommandContext) -> None:
    """Create a key for PILLARBOX_SECRET_KEYS.

    \b
    Example:
      export PILLARBOX_SECRET_KEYS="$(pillarbox keys generate)"
    """
    key = generate_key()
    if context.json:
        output.print_json({"key": key})
    else:
        print(key)


async def rotate(context: CommandContext) -> None:
    """Encrypt all secrets of providers and webhooks with the newest key.

    \b
    To change keys:
      1. put a new one in front: PILLARBOX_SECRET_KEYS="$(pillarbox keys generate),$OLD", everywhere
      2. pillarbox keys rotate
      3. remove the old one
    """
    async with context.app() as app:
        ring = app.keys()
        changed_providers, all_providers = await providers.rotate_secrets(app.database, ring)
        changed_webhooks, all_webhooks = await webhooks.rotate_secrets(app.database, ring)
    changed = changed_providers + changed_webhooks
    total = all_providers + all_webhooks
    key = ring.key_ids[0]
    context.report(
        {"resealed": changed, "secrets": total, "key": key},
        f"{changed} of {total} secrets encrypted again; all use the key {key} now",
    )
