"""Pillarbox: e-mail written in your transaction, delivered, explained."""

from __future__ import annotations

from typing import Any

from pillarbox.accept.enqueue import enqueue, enqueue_many
from pillarbox.accept.mail import Attachment, Mail
from pillarbox.errors import InvalidMail

__all__ = ["Attachment", "InvalidMail", "Mail", "__version__", "enqueue", "enqueue_many"]

__version__: str


def __getattr__(name: str) -> Any:
    """Look the version up when it is asked for: that takes longer than everything else here together."""
    if name == "__version__":
        from importlib.metadata import version

        return version("pillarbox")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
