"""Every setting, and the only reader of the environment and of pillarbox.toml.

A setting `x` is `--x` on the command line, PILLARBOX_X in the environment, `x = …` in pillarbox.toml; the
first that is given wins, then the default. Some have a short name in the environment too (SMTP_HOST).
"""

# ruff: noqa: RUF009 -- `setting` is a field declaration, like dataclasses.field

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.errors import SettingsError
from pillarbox.model.secret import Secret
from pillarbox.setting_kinds import (
    ADDRESS,
    HOST,
    KEY,
    KEYS,
    LISTEN,
    PATH,
    PORT,
    URL,
    Kind,
    boolean,
    duration,
    fraction,
    integer,
    one_of,
    size,
    text,
)

PREFIX = "PILLARBOX_"
CONFIG_ENV = PREFIX + "CONFIG"
CONFIG_FILE = "pillarbox.toml"


class Spec(NamedTuple):
    """What is declared about one setting."""

    kind: Kind
    default: str
    help: str
    why: str
    short: str | None
    secret: bool


class Row(NamedTuple):
    """One line of `pillarbox config` and of the reference page; a secret's value is ****."""

    name: str
    env: str
    short: str | None
    toml: str
    value: str
    default: str
    source: str
    allowed: str
    help: str
    why: str


def setting(
    default: str | None,
    kind: Kind,
    help: str,
    why: str,
    *,
    short: str | None = None,
    unset: str = "",
    secret: bool = False,
) -> Any:
    """Declare a setting: its default as a person would write it, its kind, what it does, why that default."""
    value = kind.empty if default is None else kind.read(default)
    spec = Spec(kind, unset if default is None else default, help, why, short, secret)
    return field(default=value, repr=not secret, metadata={"spec": spec})


# fmt: off
@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process. Durations are seconds, sizes bytes; None means not set or off."""

    database_url: str | None = setting(None, URL,
        "The PostgreSQL database.",
        "a first run needs no server", unset="embedded PostgreSQL in data_dir", secret=True)
    data_dir: Path = setting(".pillarbox", PATH,
        "Where the embedded PostgreSQL and the development key live.",
        "beside the project, easy to see and to delete")
    http: str = setting("127.0.0.1:8025", LISTEN,
        "Where the API and the dashboard listen.",
        "only this machine until you say otherwise")
    log_format: str = setting("auto", one_of("auto", "console", "json"),
        "How log lines look.",
        "auto: readable on a terminal, JSON elsewhere")
    log_level: str = setting("info", one_of("debug", "info", "warning", "error"),
        "The least important log lines shown.",
        "info tells every mail's story in one line per attempt")
    secret_keys: tuple[Secret, ...] = setting(None, KEYS,
        "Keys that seal provider secrets at rest; the first seals, all open.",
        "production sets its own, away from the database", unset="made by `up` in data_dir", secret=True)
    redaction_key: Secret | None = setting(None, KEY,
        "Key of the pseudonyms that replace addresses in logs and error columns.",
        "one secret fewer to manage", unset="made once, kept in the database", secret=True)
    worker_enabled: bool = setting("true", boolean(),
        "Whether this process delivers mail.",
        "one process does everything until you split it", short="EMAIL_WORKER_ENABLED")
    worker_concurrency: int = setting("10", integer(1, 1000),
        "Connections per provider.",
        "polite to a shared relay, and enough to hide its latency")
    worker_pipeline: int = setting("10", integer(1, 1000),
        "Mails handed to each connection at once; window = concurrency × pipeline.",
        "hides the claim's round trip without widening what a crash leaves unknown")
    worker_batch_size: int | None = setting(None, integer(1, 100_000),
        "Most deliveries per claim; never more than the window.",
        "a full window per claim is fewest statements per mail",
        short="EMAIL_WORKER_BATCH_SIZE", unset="the window")
    worker_bytes_in_flight: int = setting("64MiB", size(2**20),
        "Most bytes of content a worker holds at once.",
        "two mails at the usual 25 MB limit, in a 256 MB container")
    worker_poll_interval: float = setting("5s", duration("10ms"),
        "How often to look for due mail without being told.",
        "the longest a missed notification can delay a mail", short="EMAIL_WORKER_POLL_INTERVAL")
    worker_lease: float = setting("1m", duration("1s"),
        "How long a claim lasts unless renewed.",
        "well over a slow SMTP conversation, short enough to recover from a crash in a minute")
    worker_drain_timeout: float = setting("30s", duration("0s"),
        "How long a stopping worker waits for mails in flight.",
        "what container platforms allow before they kill")
    notify: bool = setting("true", boolean(),
        "Listen for NOTIFY; off leaves polling alone.",
        "mails leave within milliseconds; off for PgBouncer in transaction mode")
    reap_interval: float = setting("10s", duration("10ms"),
        "How often claims of dead workers are looked for.",
        "small beside the lease, and one cheap statement")
    depth_alert: int = setting("10000", integer(1, 10**15),
        "Queue depth that raises the depth alert.",
        "several seconds of one worker's throughput: more means something is stuck")
    utilisation_alert: float = setting("0.8", fraction(),
        "Worker utilisation that raises an alert.",
        "waiting times climb steeply beyond it")
    retention_content: float | None = setting("30d", duration("1s", or_off=True),
        "Age at which a finished mail's bodies and files are dropped.",
        "long enough for questions, short enough for data protection")
    retention_finished: float | None = setting("90d", duration("1s", or_off=True),
        "Age at which finished mails and their story are deleted.",
        "a quarter of history")
    retention_interval: float = setting("10m", duration("10ms"),
        "How often retention runs.",
        "small steps keep tables and vacuum calm")
    retention_batch: int = setting("1000", integer(1, 100_000),
        "Most rows per retention statement.",
        "a statement stays well under a second")
    smtp_host: str | None = setting(None, HOST,
        "The SMTP server of the default provider.",
        "only you know your relay", short="SMTP_HOST")
    smtp_port: int = setting("587", PORT,
        "The port of smtp_host.",
        "the submission port (RFC 6409)", short="SMTP_PORT")
    smtp_from_address: str | None = setting(None, ADDRESS,
        "Sender of mails that name none.",
        "only you know an address you may send from",
        short="SMTP_FROM_ADDRESS", unset="none: each mail names its sender")
    smtp_from_name: str | None = setting(None, text("a name on one line"),
        "Display name beside smtp_from_address.",
        "an address alone is correct", short="SMTP_FROM_NAME")
    pool_min: int = setting("1", integer(0, 1000),
        "PostgreSQL connections kept open.",
        "an idle process costs the server one connection")
    pool_max: int = setting("8", integer(1, 1000),
        "Most PostgreSQL connections.",
        "claim, settle, reap, retention and the API together; ten processes fit max_connections=100")
    statement_cache: bool = setting("true", boolean(),
        "Prepare statements once per connection.",
        "planning costs more than running; off for PgBouncer in transaction mode")
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # fmt: on

    @property
    def window(self) -> int:
        """Most messages a worker holds at once: what a crash can leave unknown."""
        return self.worker_concurrency * self.worker_pipeline

    @property
    def claim_limit(self) -> int:
        """Most deliveries per claim: never more than can start at once."""
        return min(self.worker_batch_size or self.window, self.window)

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port of `http`, an IPv6 host without its brackets."""
        host, _, port = self.http.rpartition(":")
        return host.strip("[]"), int(port)

    def describe(self) -> list[Row]:
        """Every setting with its value and where it came from; secrets hidden."""
        return [_row(self, name, spec) for name, spec in SPECS.items()]


SPECS: dict[str, Spec] = {f.name: f.metadata["spec"] for f in fields(Settings) if "spec" in f.metadata}
DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Settings) if f.name in SPECS}
ENV_NAMES: dict[str, str] = {PREFIX + name.upper(): name for name in SPECS}
SHORT_NAMES: dict[str, str] = {spec.short: name for name, spec in SPECS.items() if spec.short}


def _row(settings: Settings, name: str, spec: Spec) -> Row:
    value = getattr(settings, name)
    source = settings.sources.get(name, "default")
    unset = source == "default" and value == spec.kind.empty
    shown = spec.default if unset else spec.kind.show(value)
    env = PREFIX + name.upper()
    return Row(
        name, env, spec.short, name, shown, spec.default, source, spec.kind.allowed, spec.help, spec.why
    )


class _Given(NamedTuple):
    """A value as given: by what name, and from where."""

    label: str
    source: str
    raw: Any


def load(
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read all settings, or raise one SettingsError that names everything wrong."""
    env = os.environ if env is None else env
    problems: list[str] = []
    given: dict[str, _Given] = {}
    given.update(_from_file(env, file, problems))
    given.update(_from_env(env, problems))
    given.update(_from_flags(overrides, problems))
    values = dict(_read(given, problems))
    problems += _contradictions(values)
    if problems:
        raise SettingsError("\n".join(problems))
    return Settings(**values, sources={name: one.source for name, one in given.items()})


def _from_file(
    env: Mapping[str, str], file: Path | None, problems: list[str]
) -> Iterator[tuple[str, _Given]]:
    named = file or (Path(env[CONFIG_ENV]) if env.get(CONFIG_ENV) else None)
    path = named or Path(CONFIG_FILE)
    if named is None and not path.exists():
        return
    for key, raw in _parse_file(path, problems).items():
        if key in SPECS:
            yield key, _Given(f"{key} in {path}", str(path), raw)
        else:
            problems.append(_unknown(f"{key} in {path}", key, SPECS) + _flat(raw))


def _parse_file(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
    except ValueError as error:  # TOML or UTF-8; neither quotes a value
        reason = "it is not UTF-8" if isinstance(error, UnicodeError) else error
        problems.append(f"{path} is not valid TOML: {reason}")
    return {}


def _flat(raw: object) -> str:
    return ". Settings stand at the top level, not in a [table]" if isinstance(raw, dict) else ""


def _from_env(env: Mapping[str, str], problems: list[str]) -> Iterator[tuple[str, _Given]]:
    for key, name in SHORT_NAMES.items():
        if env.get(key) and not _injected(key, env[key]):  # shared names: empty means not set
            yield name, _Given(key, f"env {key}", env[key])
    for key, raw in env.items():
        if not key.startswith(PREFIX) or key == CONFIG_ENV or _injected(key, raw):
            continue
        if key in ENV_NAMES:
            yield ENV_NAMES[key], _Given(key, f"env {key}", raw)
        else:
            problems.append(_unknown(key, key, [*ENV_NAMES, CONFIG_ENV]))


def _injected(key: str, raw: str) -> bool:
    """Whether Kubernetes made this variable for a Service called pillarbox, pillarbox-… or smtp."""
    if re.search(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)", key):
        return True
    return key.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", raw) is not None


def _from_flags(overrides: Mapping[str, Any] | None, problems: list[str]) -> Iterator[tuple[str, _Given]]:
    for name, raw in (overrides or {}).items():
        if name not in SPECS:
            problems.append(_unknown(name, name, SPECS))
        elif raw is not None:  # None: the flag was not given
            yield name, _Given("--" + name.replace("_", "-"), "flag", raw)


def _unknown(label: str, name: str, known: Mapping[str, Any] | list[str]) -> str:
    return f"{label} is not a setting{_suggest(name, known)}"


def _suggest(word: str, known: Mapping[str, Any] | list[str] | tuple[str, ...]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _read(given: Mapping[str, _Given], problems: list[str]) -> Iterator[tuple[str, Any]]:
    for name, one in given.items():
        try:
            yield name, SPECS[name].kind.read(one.raw)
        except (ValueError, TypeError):
            problems.append(_wrong(SPECS[name], one))


def _wrong(spec: Spec, one: _Given) -> str:
    """Says what is wrong; a secret's value is never part of it."""
    if one.raw == "":
        return f"{one.label} is empty: remove it, or give {spec.kind.allowed}"
    value = "has a wrong value" if spec.secret else f"is {str(one.raw)[:60]!r}"
    return f"{one.label} {value}: must be {spec.kind.allowed}{_suggest(str(one.raw), spec.kind.choices)}"


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    least, most = (values.get(name, DEFAULTS[name]) for name in ("pool_min", "pool_max"))
    if least > most:
        yield f"pool_min is {least}, more than pool_max, which is {most}"
