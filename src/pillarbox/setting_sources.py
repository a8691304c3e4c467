"""Where settings come from: a file, the environment, flags; the later wins. All that is wrong is told at once."""

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
    """A value as given: by what name, and from where."""

    label: str
    source: str
    raw: Any


class SettingSources:
    """Gathers what was given for these settings, and what is wrong with it."""

    def __init__(self, specs: Mapping[str, SettingSpec]) -> None:
        self._specs = specs
        self.given: dict[str, GivenValue] = {}
        self.problems: list[str] = []

    def file(self, env: Mapping[str, str], file: Path | None) -> None:
        """A file that was named, by the environment perhaps, or pillarbox.toml if it is here."""
        named = file or (Path(env[CONFIG_ENV]) if env.get(CONFIG_ENV) else None)
        path = named or Path(CONFIG_FILE)
        if named is None and not path.exists():
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
            reason = "it is not UTF-8" if isinstance(error, UnicodeError) else error
            self.problems.append(f"{path} is not valid TOML: {reason}")
        return {}

    def environment(self, env: Mapping[str, str]) -> None:
        """Short names first: PILLARBOX_… wins over what is shared with other programs."""
        for name, spec in self._specs.items():
            key = spec.short
            if (
                key and env.get(key) and not _injected(key, env[key])
            ):  # shared names: empty means not set
                self.given[name] = GivenValue(key, f"env {key}", env[key])
        names = {PREFIX + name.upper(): name for name in self._specs}
        for key, raw in env.items():
            if not key.startswith(PREFIX) or key == CONFIG_ENV or _injected(key, raw):
                continue
            if key in names:
                self.given[names[key]] = GivenValue(key, f"env {key}", raw)
            else:
                self.problems.append(_unknown(key, key, [*names, CONFIG_ENV]))

    def flags(self, flags: Mapping[str, Any]) -> None:
        for name, raw in flags.items():
            if name not in self._specs:
                self.problems.append(_unknown(name, name, self._specs))
            elif raw is not None:  # None: the flag was not given
                self.given[name] = GivenValue("--" + name.replace("_", "-"), "flag", raw)

    def read(self) -> Iterator[tuple[str, Any]]:
        """What was given, by setting, as its kind reads it."""
        for name, one in self.given.items():
            try:
                yield name, self._specs[name].kind.read(one.raw)
            except (ValueError, TypeError):
                self.problems.append(_wrong(self._specs[name], one))


def _injected(key: str, raw: str) -> bool:
    """Whether Kubernetes made this variable for a Service called pillarbox, pillarbox-… or smtp."""
    if re.search(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)", key):
        return True
    return key.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", raw) is not None


def _unknown(label: str, name: str, known: Collection[str]) -> str:
    return f"{label} is not a setting{_suggest(name, known)}"


def _suggest(word: str, known: Collection[str]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _wrong(spec: SettingSpec, one: GivenValue) -> str:
    """Says what is wrong; a secret's value is never part of it."""
    if one.raw == "":
        return f"{one.label} is empty: remove it, or give {spec.kind.allowed}"
    value = "has a wrong value" if spec.secret else f"is {str(one.raw)[:60]!r}"
    hint = _suggest(str(one.raw), spec.kind.choices) + _flat(one.raw)
    return f"{one.label} {value}: must be {spec.kind.allowed}{hint}"


def _flat(raw: object) -> str:
    return ". Settings stand at the top level, not in a [table]" if isinstance(raw, dict) else ""
