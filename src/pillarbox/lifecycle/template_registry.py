"""Registers the templates in the database: SQL cannot read files, and checks tokens against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pillarbox.lifecycle.rendering import Templates
    from pillarbox.store.database import Database
    from pillarbox.store.lifecycle import TokenStore


class TemplateRegistry:
    """Writes this process's templates to the table `templates`; collectors do, since they render.

    A removed template is marked as removed. All collectors of an installation have the same
    `template_dirs`.
    """

    def __init__(
        self,
        database: Database,
        tokens: TokenStore,
        templates: Callable[[], Templates],
    ) -> None:
        self._database = database
        self._tokens = tokens
        self._templates = templates
        self._registered: list[str] | None = None

    async def register(self) -> int:
        """Write the changes since the last call; return how many templates changed."""
        names = self._templates().names()
        if names == self._registered:
            return 0
        changed = await self._tokens.register_templates(self._database, names)
        self._registered = names
        return changed
