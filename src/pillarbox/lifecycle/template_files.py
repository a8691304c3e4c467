"""The files that templates are made of: found once, in the folders they were looked for in, and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pillarbox.errors import SettingsError
from pillarbox.lifecycle.portals import is_language

PACKAGE = Path(__file__).parent / "templates"
# Characters of one file: a long mail has a tenth of it, and something else is no template.
LARGEST = 256 * 1024
# Files in one folder of templates: more is the folder of something else.
MOST_FILES = 10_000
# Folders below each other: <portal>/<kind>/<file>.
_DEPTH = 3
_ENDINGS = (".html", ".txt", ".subject", ".css", ".toml", ".json")
_name = re.compile(r"[A-Za-z0-9][\w-]*").fullmatch
PARTS = {"subject": ".subject", "text": ".txt", "html": ".html"}
LAYOUT = "layout"


class TemplateFile(NamedTuple):
    """One file: the folder of templates that it came from, and what is in it."""

    folder: Path
    text: str


class TemplateFiles:
    """All files by their names below the folders of templates; an earlier folder's file hides a later one's."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.files: dict[str, TemplateFile] = {}
        for folder in folders:
            for name, path in _found(folder):
                if name not in self.files:
                    self.files[name] = TemplateFile(folder, _read(path))
        self.templates = _templates(self.files)

    def text(self, name: str) -> str | None:
        """What is in a file; None if there is none of that name."""
        found = self.files.get(name)
        return None if found is None else found.text


def _found(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        raise SettingsError(f"template_dirs: there is no folder {folder}")
    for count, (name, path) in enumerate(_walk(folder, "", 1)):
        if count == MOST_FILES:
            raise SettingsError(
                f"template_dirs: {folder} has more than {MOST_FILES} files: is it the right folder?"
            )
        yield name, path


def _walk(folder: Path, before: str, depth: int) -> Iterator[tuple[str, Path]]:
    """The files below a folder; others' work, such as `.git` or a backup of an editor, is passed over."""
    try:
        entries = sorted(os.scandir(folder), key=lambda one: one.name)
    except OSError as error:
        raise SettingsError(f"template_dirs: {folder} cannot be read: {error.strerror}") from None
    for entry in entries:
        if entry.is_dir() and depth < _DEPTH and _name(entry.name):
            yield from _walk(Path(entry.path), f"{before}{entry.name}/", depth + 1)
        elif entry.is_file() and entry.name.endswith(_ENDINGS) and not entry.name.startswith("."):
            yield before + entry.name, Path(entry.path)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise SettingsError(f"template_dirs: {path} is larger than {LARGEST // 1024} KiB")
        return path.read_text("utf-8")
    except OSError as error:
        raise SettingsError(f"template_dirs: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"template_dirs: {path} is not UTF-8") from None


def _templates(files: dict[str, TemplateFile]) -> dict[str, dict[str, set[str]]]:
    """The templates: by name (`hub/welcome`), by language, which parts there are."""
    found: dict[str, dict[str, set[str]]] = {}
    parts = {ending: part for part, ending in PARTS.items()}
    for name in files:
        folder, _, file = name.rpartition("/")
        locale, ending = os.path.splitext(file)
        if ending in parts and folder.count("/") == 1 and is_language(locale):
            found.setdefault(folder, {}).setdefault(locale, set()).add(parts[ending])
    return dict(sorted(found.items()))
