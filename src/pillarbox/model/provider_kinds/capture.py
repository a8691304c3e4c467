"""`capture`: keeps mails for reading and sends nothing out; the development default."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox.model.provider_kind import ProviderKind


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """There is nothing to set."""


KIND = ProviderKind(
    name="capture",
    help="""Add a provider that keeps mails for reading and sends nothing out.

    \b
    Example:
      pillarbox provider add capture dev
    """,
    settings=CaptureSettings,
    transport="pillarbox.deliver.transports.capture:build_transport",
    rank=50,  # used by default only in development, while nothing else was ever configured
    retry="quadratic",
    server=lambda stored: "",
    sends_out=False,
)
