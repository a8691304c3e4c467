"""Builds the transport of a provider, as the record of its kind says."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from pillarbox.errors import NotPossible, SettingsError
from pillarbox.model.provider_kinds import KINDS

if TYPE_CHECKING:
    from pillarbox.deliver.transports.base import Transport, TransportContext
    from pillarbox.model.provider import Provider


def build_transport(
    provider: Provider, context: TransportContext, default_connections: int
) -> Transport:
    """The transport of a provider. Its module is imported here, so that no command pays for it."""
    kind = KINDS.get(provider.kind)
    if kind is None:
        raise NotPossible(f"provider {provider.name!r} is of an unknown kind {provider.kind!r}")
    try:
        settings = kind.read_settings(provider.settings, provider.secret, default_connections)
    except SettingsError as error:
        raise SettingsError(f"provider {provider.name!r}: {error}") from None
    transport: Transport = resolve_name(kind.transport)(settings, context)
    return transport
