"""Tells the database which templates there are: SQL cannot see files, and refuses tokens that could not be mailed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pillarbox.lifecycle.rendering import Templates
    from pillarbox.store.database import Database
    from pillarbox.store.lifecycle import TokenStore


class TemplateRegistry:
    """The templates of this process in the table `templates`; collectors write it, for they are who render.

    A template that is gone is marked as such. All collectors of an installation have the same
    `template_dirs`.
    """

    def __init__(
        self, database: Database, tokens: TokenStore, templates: Callable[[], Templates]
    ) -> None:
        self._database = database
        self._tokens = tokens
        self._templates = templates
        self._registered: list[str] | None = None

    async def register(self) -> int:
        """Write what changed since the last call; returns how many templates came or went."""
        names = self._templates().names()
        if names == self._registered:
            return 0
        changed = await self._tokens.register_templates(self._database, names)
        self._registered = names
        return changed
