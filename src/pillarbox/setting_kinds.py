"""The kinds of value a setting can have: how each is read, what is allowed, how it is shown.

`read` takes text from the environment, a TOML value or a flag, and raises ValueError if invalid.
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from pillarbox.model.proxies import Network, parse_network
from pillarbox.model.secret import MASK, Secret

KEY_BYTES = 32  # AES-256 and HMAC-SHA-256 both want exactly this much

_YEAR = 365 * 86400.0
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_HOST_PATTERN = re.compile(r"\*|[a-z0-9_.-]+|[0-9a-f.]*(:[0-9a-f.]*){2,}").fullmatch
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class SettingKind:
    """A kind of value: what is allowed in words, how to read it, how to show it."""

    allowed: str
    read: Callable[[Any], Any]
    show: Callable[[Any], str] = str
    choices: tuple[str, ...] = ()
    empty: Any = None  # the value when nothing is given


def _string(raw: object) -> str:
    """A scalar as trimmed text; ValueError for other types and for control characters."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float | os.PathLike):
        raise ValueError
    text = str(raw).strip()
    if not text or any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError
    return text


def _within(value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also false for NaN
        raise ValueError


def _number_and_unit(raw: object, units: Mapping[str, float], plain: str) -> float:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?) ?([a-z]*)", _string(raw).lower(), re.ASCII)
    if match is None or (match[2] or plain) not in units:
        raise ValueError
    return float(match[1]) * units[match[2] or plain]


def text(allowed: str, pattern: str = r".*") -> SettingKind:
    def read(raw: object) -> str:
        value = _string(raw)
        if not re.fullmatch(pattern, value):
            raise ValueError
        return value

    return SettingKind(allowed, read)


def one_of(*choices: str) -> SettingKind:
    def read(raw: object) -> str:
        value = _string(raw).lower()
        if value not in choices:
            raise ValueError
        return value

    return SettingKind("one of " + ", ".join(choices), read, choices=choices)


def integer(low: int, high: int) -> SettingKind:
    def read(raw: object) -> int:
        value = _string(raw)
        if not re.fullmatch(r"\d{1,18}", value, re.ASCII):
            raise ValueError
        _within(int(value), low, high)
        return int(value)

    return SettingKind(f"a whole number from {low} to {high}", read)


def fraction() -> SettingKind:
    def read(raw: object) -> float:
        value = float(_string(raw))
        _within(value, 0.0, 1.0)
        return value

    return SettingKind("a number from 0 to 1", read, lambda value: f"{value:g}")


def boolean() -> SettingKind:
    def read(raw: object) -> bool:
        value = str(raw).strip().lower()
        if value not in _TRUE + _FALSE:
            raise ValueError
        return value in _TRUE

    return SettingKind(
        "true or false (1/0, yes/no, on/off)", read, lambda value: str(value).lower()
    )


def duration(low: str = "0s", *, or_off: bool = False) -> SettingKind:
    shortest = _number_and_unit(low, _UNITS, "s")

    def read(raw: object) -> float | None:
        if or_off and str(raw).strip().lower() == "off":
            return None
        seconds = _number_and_unit(raw, _UNITS, "s")
        _within(
            seconds, shortest, 100 * _YEAR
        )  # a century: beyond it clocks and intervals overflow
        return seconds

    allowed = "a duration such as 500ms, 5s, 10m, 2h, 7d, or plain seconds"
    if or_off:
        allowed += ", or off"
    return SettingKind(f"{allowed}; at least {low}", read, show_duration)


def milliseconds() -> SettingKind:
    def read(raw: object) -> float:
        seconds = _number_and_unit(raw, _UNITS, "ms")
        _within(seconds, 0, _YEAR)
        return seconds

    return SettingKind("a duration such as 5s, or plain milliseconds", read, show_duration)


def show_duration(seconds: float | None) -> str:
    """The shortest exact form: 5s, 500ms, 30d; `off` for none."""
    if seconds is None:
        return "off"
    for unit in ("d", "h", "m", "s", "ms"):
        count = seconds / _UNITS[unit]
        if count >= 1 and math.isclose(count, round(count), rel_tol=1e-12):
            return f"{round(count)}{unit}"
    return f"{seconds:g}s"


def size(low: int) -> SettingKind:
    def read(raw: object) -> int:
        value = int(_number_and_unit(raw, _SIZES, ""))
        _within(value, low, 2**40)  # a tebibyte: no process holds more mail in memory
        return value

    return SettingKind(
        f"a size such as 64MiB, 10MB, or plain bytes; at least {show_size(low)}", read, show_size
    )


def show_size(count: int) -> str:
    for name in ("GiB", "MiB", "KiB", "GB", "MB"):
        factor = _SIZES[name.lower()]
        if count and count % factor == 0:
            return f"{count // factor}{name}"
    return str(count)


def key_bytes(key: Secret) -> bytes:
    """The 32 bytes of a key written as 64 hex digits or as base64; ValueError for anything else."""
    value = key.reveal().strip()
    if re.fullmatch(r"[0-9a-fA-F]{64}", value):
        return bytes.fromhex(value)
    try:
        padded = value.rstrip("=").translate(str.maketrans("-_", "+/")) + "="
        decoded = base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64") from None  # the original may quote the key
    if len(decoded) != KEY_BYTES:
        raise ValueError("not 32 bytes")
    return decoded


def _parts(raw: object, separator: str = ",") -> Sequence[object]:
    """The members of a list: a TOML array, or text with separators. Never empty."""
    if isinstance(raw, str):
        return raw.split(separator)
    if isinstance(raw, list | tuple) and raw:
        return raw
    raise ValueError


def _read_key(raw: object) -> Secret:
    if not isinstance(raw, Secret):
        raw = Secret(_string(raw))
    key_bytes(raw)
    return raw


def _read_keys(raw: object) -> tuple[Secret, ...]:
    return tuple(_read_key(part) for part in _parts(raw))


class RetiringKey(NamedTuple):
    """A key, and the day (UTC) on which it stops verifying; None: never."""

    key: Secret
    until: date | None


def _read_retiring_keys(raw: object) -> tuple[RetiringKey, ...]:
    return tuple(_read_retiring_key(_string(part)) for part in _parts(raw))


def _read_retiring_key(text: str) -> RetiringKey:
    key, _, day = text.partition("@")
    until = None
    if day:
        until = date.fromisoformat(day)
    return RetiringKey(_read_key(key), until)


def _read_paths(raw: object) -> tuple[Path, ...]:
    return tuple(Path(os.path.expanduser(_string(part))) for part in _parts(raw, os.pathsep))


def _read_database(raw: object) -> str:
    """A URL, or what libpq calls a connection string (`dbname=mail host=/tmp`), as a URL."""
    value = _string(raw)
    if re.fullmatch(r"postgres(ql)?://.+", value):
        return value
    pairs = [word.partition("=") for word in shlex.split(value)]
    if not pairs or not all(name.isidentifier() and value for name, _, value in pairs):
        raise ValueError
    known = {name: value for name, _, value in pairs}
    return f"postgresql:///{quote(known.pop('dbname', ''), safe='')}?{urlencode(known)}".rstrip("?")


def show_url(url: str) -> str:
    """A database URL without its password."""
    url = re.sub(r"(://[^:/?#]*):.*@", r"\1:****@", url)
    return re.sub(r"(password=)[^&]*", r"\1****", url)


def _read_listen(raw: object) -> str:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})", _string(raw), re.ASCII)
    if match is None:
        raise ValueError
    _within(int(match[2]), 0, 65535)  # 0: any free port
    return match[0]


def _read_hosts(raw: object) -> tuple[str, ...]:
    names = tuple(_string(part).lower() for part in _parts(raw))
    if not all(_HOST_PATTERN(name) for name in names):
        raise ValueError
    return names


def _read_networks(raw: object) -> tuple[Network, ...]:
    return tuple(parse_network(_string(part)) for part in _parts(raw))


def _show_networks(networks: Sequence[Network]) -> str:
    """Networks as people write them: a single address without its prefix length."""
    return ", ".join(str(network).removesuffix(f"/{network.max_prefixlen}") for network in networks)


def _read_listen_or_off(raw: object) -> str:
    if str(raw).strip().lower() == "off":
        return "off"
    return _read_listen(raw)


def _read_local_listen(raw: object) -> str:
    """host:port; a port alone means this machine."""
    value = _string(raw)
    if value.isdecimal():
        value = f"127.0.0.1:{value}"
    return _read_listen(value)


def _hidden(value: object) -> str:
    return MASK if value else ""


_KEY = "32 bytes as 64 hex digits or base64"
KEY = SettingKind(_KEY, _read_key, _hidden)
KEYS = SettingKind(
    f"keys separated by commas, newest first, each {_KEY}", _read_keys, _hidden, empty=()
)
RETIRING_KEYS = SettingKind(
    f"keys separated by commas, newest first, each {_KEY};"
    " a key that expires ends with @ and its day of expiry, as @2030-01-31",
    _read_retiring_keys,
    _hidden,
    empty=(),
)
URL = SettingKind("a URL such as postgresql://user@host:5432/name", _read_database, show_url)
WEB = text("a URL such as https://mail.example.com", r"https?://[^\s?#]+")
LOCALE = text("a language tag such as en or de-AT", r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
LISTEN = SettingKind("host:port, such as 127.0.0.1:8025 or [::1]:8025", _read_listen)
LISTEN_OR_OFF = SettingKind(
    "host:port, such as 127.0.0.1:1025 or [::1]:1025, or off", _read_listen_or_off
)
LOCAL_LISTEN = SettingKind("a port of this machine such as 2525, or host:port", _read_local_listen)
HOST = text(
    "a host name or address, without a port", r"[^\s/@:\[\]]+|[0-9a-fA-F.]*(:[0-9a-fA-F.]*){2,}"
)
HOSTS = SettingKind(
    "host names separated by commas, without ports, or *", _read_hosts, ", ".join, empty=()
)
NETWORKS = SettingKind(
    "IP addresses and networks separated by commas, such as 10.0.0.7 or 10.0.0.0/8",
    _read_networks,
    _show_networks,
    empty=(),
)
ADDRESS = text("one e-mail address such as noreply@example.com", r"[^\s@<>,]+@[^\s@<>,]+")
MAILBOX = text(
    "a sender such as Hub <no-reply@hub.example>",
    r"[^<>]*<[^\s@<>,]+@[^\s@<>,]+>|[^\s@<>,]+@[^\s@<>,]+",
)
NAME = text("a name of small letters, digits and _", r"[a-z_][a-z0-9_]{0,62}")
PORT = integer(1, 65535)
PATHS = SettingKind(
    f"paths separated by {os.pathsep}",
    _read_paths,
    lambda value: os.pathsep.join(map(str, value)),
    empty=(),
)
PATH = SettingKind("a path", lambda raw: Path(os.path.expanduser(_string(raw))))
