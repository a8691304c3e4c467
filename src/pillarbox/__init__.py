"""Pillarbox: e-mail written in your transaction, delivered, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pillarbox.accept.enqueue import enqueue, enqueue_many
from pillarbox.accept.mail import Attachment, Mail
from pillarbox.errors import InvalidMail

if TYPE_CHECKING:
    from pillarbox.client.asynchronous import AsyncClient
    from pillarbox.client.sync import Client
    from pillarbox.client.webhook import verify_webhook

__all__ = [
    "AsyncClient",
    "Attachment",
    "Client",
    "InvalidMail",
    "Mail",
    "__version__",
    "enqueue",
    "enqueue_many",
    "verify_webhook",
]

__version__: str


def __getattr__(name: str) -> Any:
    """Import names when first used: each takes longer than the rest of this package."""
    if name == "Client":
        from pillarbox.client.sync import Client

        return Client
    if name == "AsyncClient":
        from pillarbox.client.asynchronous import AsyncClient

        return AsyncClient
    if name == "verify_webhook":
        from pillarbox.client.webhook import verify_webhook

        return verify_webhook
    if name == "__version__":
        from importlib.metadata import version

        return version("pillarbox")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
