"""Where settings come from: a file, the environment, flags; the later wins.

All problems are collected, so that one error lists them all.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.setting_kinds import SettingKind

PREFIX = "PILLARBOX_"
CONFIG_ENV = PREFIX + "CONFIG"
CONFIG_FILE = "pillarbox.toml"


class SettingSpec(NamedTuple):
    """What is declared about one setting."""

    kind: SettingKind
    default: str
    help: str
    why: str
    short: str | None
    secret: bool


class GivenValue(NamedTuple):
    """A value as given: its name for error texts, its source, and the raw value."""

    label: str
    source: str
    raw: Any


class SettingSources:
    """Collects the values given for these settings, and the problems with them."""

    def __init__(self, specs: Mapping[str, SettingSpec]) -> None:
        self._specs = specs
        self.given: dict[str, GivenValue] = {}
        self.problems: list[str] = []

    def file(self, env: Mapping[str, str], file: Path | None) -> None:
        """Read `file`, else the file of PILLARBOX_CONFIG, else pillarbox.toml if present."""
        path = file or Path(env.get(CONFIG_ENV) or CONFIG_FILE)
        is_named = file is not None or bool(env.get(CONFIG_ENV))
        if not is_named and not path.exists():
            return
        for key, raw in self._parse(path).items():
            if key in self._specs:
                self.given[key] = GivenValue(f"{key} in {path}", str(path), raw)
            else:
                self.problems.append(_unknown(f"{key} in {path}", key, self._specs) + _flat(raw))

    def _parse(self, path: Path) -> dict[str, Any]:
        try:
            return tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            self.problems.append(f"{path} cannot be read: {error.strerror}")
        except ValueError as error:  # TOML or UTF-8; neither quotes a value
            reason = str(error)
            if isinstance(error, UnicodeError):
                reason = "it is not UTF-8"
            self.problems.append(f"{path} is not valid TOML: {reason}")
        return {}

    def environment(self, env: Mapping[str, str]) -> None:
        """Read the environment. PILLARBOX_… wins over short names, which other programs share."""
        for name, spec in self._specs.items():
            key = spec.short
            if key is None:
                continue
            raw = env.get(key)
            if raw and not _injected(key, raw):  # an empty shared variable counts as not set
                self.given[name] = GivenValue(key, f"env {key}", raw)
        names = {PREFIX + name.upper(): name for name in self._specs}
        for key, raw in env.items():
            if not key.startswith(PREFIX) or key == CONFIG_ENV or _injected(key, raw):
                continue
            if key in names:
                self.given[names[key]] = GivenValue(key, f"env {key}", raw)
            else:
                self.problems.append(_unknown(key, key, [*names, CONFIG_ENV]))

    def flags(self, flags: Mapping[str, Any]) -> None:
        """Read options of the command line; None means that the option was not given."""
        for name, raw in flags.items():
            if name not in self._specs:
                self.problems.append(_unknown(name, name, self._specs))
            elif raw is not None:
                self.given[name] = GivenValue("--" + name.replace("_", "-"), "flag", raw)

    def read(self) -> Iterator[tuple[str, Any]]:
        """The name and the parsed value of each setting given; invalid values become problems."""
        for name, value in self.given.items():
            try:
                yield name, self._specs[name].kind.read(value.raw)
            except (ValueError, TypeError):
                self.problems.append(_wrong(self._specs[name], value))


def _injected(key: str, raw: str) -> bool:
    """Whether Kubernetes set this variable for a Service named pillarbox, pillarbox-… or smtp."""
    if re.search(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)", key):
        return True
    return key.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", raw) is not None


def _unknown(label: str, name: str, known: Collection[str]) -> str:
    return f"{label} is not a setting{_suggest(name, known)}"


def _suggest(word: str, known: Collection[str]) -> str:
    for match in get_close_matches(word, list(known), n=1):
        return f"; did you mean {match}?"
    return ""


def _wrong(spec: SettingSpec, given: GivenValue) -> str:
    """The problem with a value; never contains the value of a secret."""
    label, raw = given.label, given.raw
    if raw == "":
        return f"{label} is empty: remove it, or give {spec.kind.allowed}"
    problem = f"{label} is {str(raw)[:60]!r}"
    if spec.secret:
        problem = f"{label} has a wrong value"
    hint = _suggest(str(raw), spec.kind.choices) + _flat(raw)
    return f"{problem}: must be {spec.kind.allowed}{hint}"


def _flat(raw: object) -> str:
    if isinstance(raw, dict):
        return ". Settings stand at the top level, not in a [table]"
    return ""
