"""`keys`: the keys that seal provider secrets."""

from __future__ import annotations

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext, command
from pillarbox.store import providers, webhooks
from pillarbox.store.vault import generate_key


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Keys that seal provider secrets at rest.", no_args_is_help=True)
    command(group, "generate", store=False)(generate)
    command(group, "rotate")(rotate)
    root.add_typer(group, name="keys")


async def generate(context: CommandContext) -> None:
    """Make a new key for PILLARBOX_SECRET_KEYS.

    \b
    Example:
      export PILLARBOX_SECRET_KEYS="$(pillarbox keys generate)"
    """
    key = generate_key()
    output.print_json({"key": key}) if context.json else print(key)


async def rotate(context: CommandContext) -> None:
    """Seal every secret of providers and webhooks with the newest key.

    \b
    To change keys:
      1. put a new one in front: PILLARBOX_SECRET_KEYS="$(pillarbox keys generate),$OLD", everywhere
      2. pillarbox keys rotate
      3. take the old one out
    """
    async with context.app() as app:
        ring = app.keys()
        of_providers = await providers.rotate_secrets(app.database, ring)
        of_webhooks = await webhooks.rotate_secrets(app.database, ring)
        resealed, total = (sum(both) for both in zip(of_providers, of_webhooks, strict=True))
    if context.json:
        output.print_json({"resealed": resealed, "secrets": total, "key": ring.key_ids[0]})
    else:
        output.say(
            f"{resealed} of {total} secrets sealed anew; all are under key {ring.key_ids[0]} now"
        )
