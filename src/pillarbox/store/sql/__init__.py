"""Named queries: `-- name: x` starts one, the comment lines after it describe it."""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load(file: str) -> dict[str, str]:
    """The queries of `<file>.sql`, by name."""
    parts = _NAME.split(resources.files(__name__).joinpath(f"{file}.sql").read_text("utf-8"))
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
