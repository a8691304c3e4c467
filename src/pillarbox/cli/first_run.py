"""Prepares a new installation: its first provider, and in development a key."""

from __future__ import annotations

from pathlib import Path

from pillarbox.app import App
from pillarbox.model.access import Scope
from pillarbox.model.provider_kinds import kind_of
from pillarbox.model.provider_kinds.capture import KIND as CAPTURE_KIND
from pillarbox.model.provider_kinds.smtp import KIND as SMTP_KIND
from pillarbox.model.provider_kinds.smtp import Tls
from pillarbox.store import access, providers, tenants
from pillarbox.store.vault import read_private_file, write_private_file

CAPTURE, SMTP = CAPTURE_KIND.name, SMTP_KIND.name


async def ensure_provider(app: App, *, development: bool) -> None:
    """Add the first provider: SMTP_HOST, or in development one that captures mails."""
    settings = app.settings
    if settings.smtp_from_address:
        await tenants.set_default_sender(
            app.database, _mailbox(settings.smtp_from_name, settings.smtp_from_address)
        )
    known = await providers.list_providers(app.database, None)
    if app.capture_all and all(kind_of(provider.kind).sends_out for provider in known):
        await providers.add_provider(
            app.database,
            app.keys,
            CAPTURE,
            CAPTURE,
            {},
        )
    if known or app.capture_all:
        return
    if settings.smtp_host:
        smtp = {"host": settings.smtp_host, "port": settings.smtp_port, "tls": Tls.OPPORTUNISTIC}
        await providers.add_provider(
            app.database,
            app.keys,
            "default",
            SMTP,
            smtp,
        )
    elif await providers.captures_by_default(app.database, development=development):
        await providers.add_provider(
            app.database,
            app.keys,
            CAPTURE,
            CAPTURE,
            {},
        )


async def ensure_development_key(app: App) -> Path | None:
    """The file with a key of the tenant `default`, created if needed; embedded database only."""
    if app.settings.database_url is not None or not app.settings.is_development:
        return None
    path = app.settings.data_dir / "development.key"
    token = read_private_file(path)
    if token is None or (await access.find_keys(app.database, [token]))[0] is None:
        for old in await access.list_keys(app.database, "default", name="development"):
            # Its file was lost and is written again: credentials made with it stay valid.
            await access.revoke_key(app.database, old.id, keep_descendants=True)
        scopes = [Scope.SEND, Scope.READ, Scope.MANAGE]
        _, key = await access.add_key(
            app.database,
            "default",
            "development",
            scopes,
        )
        write_private_file(path, key.reveal())
    return path


def _mailbox(name: str | None, address: str) -> str:
    if not name:
        return address
    return f"{name} <{address}>"
