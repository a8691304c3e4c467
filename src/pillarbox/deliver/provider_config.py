"""Loads what a ProviderPool needs: providers, classes of messages and routing rules."""

from __future__ import annotations

from pillarbox.deliver.provider_pool import ProviderConfig
from pillarbox.model.provider_kinds import kind_of
from pillarbox.store import providers, routes
from pillarbox.store.database import Database
from pillarbox.store.providers import Keys


async def load_provider_config(
    database: Database, keys: Keys, *, development: bool, capture_all: bool = False
) -> ProviderConfig:
    """The current configuration, secrets decrypted; `capture_all` keeps every mail here."""
    found = await providers.list_providers(database, keys)
    classes = await providers.list_classes(database)
    if capture_all:
        captures = [provider for provider in found if not kind_of(provider.kind).sends_out]
        return ProviderConfig(captures, classes, captures=True)
    rules = await routes.list_rules(database)
    captures_by_default = await providers.captures_by_default(database, development=development)
    return ProviderConfig(found, classes, rules, captures_by_default)
