"""Reads the files of templates, from the configured folders only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pillarbox.errors import SettingsError
from pillarbox.lifecycle.portals import is_language

PACKAGE = Path(__file__).parent / "templates"
# Size of one file: a long mail has a tenth of it; a larger file is not a template.
MAX_FILE_BYTES = 256 * 1024
# Files in one folder: a folder with more is probably the wrong one.
MAX_FILES = 10_000
# Levels of folders: <portal>/<kind>/<file>.
_MAX_DEPTH = 3
_SUFFIXES = (".html", ".txt", ".subject", ".css", ".toml", ".json")
_name = re.compile(r"[A-Za-z0-9][\w-]*").fullmatch
PARTS = {"subject": ".subject", "text": ".txt", "html": ".html"}
_PART_OF_SUFFIX = {suffix: part for part, suffix in PARTS.items()}
LAYOUT = "layout"


class TemplateFile(NamedTuple):
    """A file: the template folder that it comes from, and its text."""

    folder: Path
    text: str


class TemplateFiles:
    """All files by their relative names; a file in an earlier folder hides one in a later folder.

    `templates` has, by template name (`hub/welcome`) and language, the parts that exist.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.files: dict[str, TemplateFile] = {}
        for folder in folders:
            for name, path in _files_in(folder):
                if name not in self.files:
                    self.files[name] = TemplateFile(folder, _read(path))
        self.templates = _templates(self.files)

    def text(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""
        file = self.files.get(name)
        if file is None:
            return None
        return file.text


def _files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        raise SettingsError(f"template_dirs: the folder {folder} does not exist")
    for count, (name, path) in enumerate(_walk(folder, "", 1)):
        if count == MAX_FILES:
            raise SettingsError(
                f"template_dirs: {folder} has more than {MAX_FILES} files: is it the right folder?"
            )
        yield name, path


def _walk(
    folder: Path,
    prefix: str,
    depth: int,
) -> Iterator[tuple[str, Path]]:
    """The files below a folder; others, such as `.git` or an editor's backups, are ignored."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise SettingsError(f"template_dirs: {folder} cannot be read: {error.strerror}") from None
    for entry in entries:
        name = entry.name
        if entry.is_dir():
            if depth < _MAX_DEPTH and _name(name):
                yield from _walk(Path(entry.path), f"{prefix}{name}/", depth + 1)
        elif entry.is_file() and name.endswith(_SUFFIXES) and not name.startswith("."):
            yield prefix + name, Path(entry.path)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            limit = MAX_FILE_BYTES // 1024
            raise SettingsError(f"template_dirs: {path} is larger than {limit} KiB")
        return path.read_text("utf-8")
    except OSError as error:
        raise SettingsError(f"template_dirs: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"template_dirs: {path} is not UTF-8") from None


def _templates(files: dict[str, TemplateFile]) -> dict[str, dict[str, set[str]]]:
    """The parts that exist, by template name and language."""
    templates: dict[str, dict[str, set[str]]] = {}
    for name in files:
        folder, _, file = name.rpartition("/")
        locale, suffix = os.path.splitext(file)
        part = _PART_OF_SUFFIX.get(suffix)
        if part is not None and folder.count("/") == 1 and is_language(locale):
            locales = templates.setdefault(folder, {})
            locales.setdefault(locale, set()).add(part)
    return dict(sorted(templates.items()))
