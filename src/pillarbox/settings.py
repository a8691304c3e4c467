"""Every setting, and the only reader of the environment and of pillarbox.toml.

A setting `x` is `--x` on the command line, PILLARBOX_X in the environment, `x = …` in
pillarbox.toml; the first that is given wins, then the default. Some have a short name in the
environment too (SMTP_HOST).
"""

# ruff: noqa: RUF009 -- `setting` is a field declaration, like dataclasses.field

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pillarbox.errors import SettingsError
from pillarbox.model.proxies import Network
from pillarbox.model.secret import Secret
from pillarbox.setting_kinds import (
    ADDRESS,
    HOST,
    HOSTS,
    KEY,
    KEYS,
    LISTEN,
    LISTEN_OR_OFF,
    LOCAL_LISTEN,
    LOCALE,
    MAILBOX,
    NAME,
    NETWORKS,
    PATH,
    PATHS,
    PORT,
    RETIRING_KEYS,
    URL,
    WEB,
    RetiringKey,
    SettingKind,
    boolean,
    duration,
    fraction,
    integer,
    milliseconds,
    one_of,
    size,
    text,
)
from pillarbox.setting_sources import PREFIX, SettingSources, SettingSpec


class SettingRow(NamedTuple):
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
    kind: SettingKind,
    help: str,
    why: str,
    *,
    short: str | None = None,
    unset: str = "",
    secret: bool = False,
) -> Any:
    """Declare a setting: its default as a person would write it, its kind, what it does, why that default."""
    value = kind.empty if default is None else kind.read(default)
    spec = SettingSpec(kind, unset if default is None else default, help, why, short, secret)
    return field(default=value, repr=not secret, metadata={"spec": spec})


# fmt: off
@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process. Durations are seconds, sizes bytes; None means not set or off."""

    database_url: str | None = setting(None, URL,
        "The PostgreSQL database.",
        "a first run needs no server",
        short="MAILROOM_DATABASE_URL", unset="embedded PostgreSQL in data_dir", secret=True)
    data_dir: Path = setting(".pillarbox", PATH,
        "Where the embedded PostgreSQL and the development key live.",
        "beside the project, easy to see and to delete")
    http: str = setting("127.0.0.1:8025", LISTEN,
        "Where the API and the dashboard listen.",
        "only this machine until you say otherwise")
    http_hosts: tuple[str, ...] = setting(None, HOSTS,
        "Further host names under which the API is reached; * for any.",
        "a web page that points its own name at this machine is refused", unset="the address of http alone")
    http_max_body: int = setting("36MiB", size(2**10),
        "Largest body of a request.",
        "a mail of 25 MiB with its files as base64, and room for the rest of the JSON")
    http_bytes_in_flight: int = setting("128MiB", size(2**20),
        "Most bytes of request bodies held at once, all together.",
        "three of the largest or thousands of usual ones, in a 1 GB container: each is held several times over")
    http_concurrency: int = setting("500", integer(1, 100_000),
        "Most requests handled at once.",
        "ten times what keeps the database busy; more would only wait longer")
    http_connections: int = setting("800", integer(1, 1_000_000),
        "Most open HTTP connections; at the limit the one that has been idle longest is closed.",
        "a process may usually have 1,024 files open, and the database needs some; raise both together")
    http_request_timeout: float = setting("1m", duration("100ms"),
        "How long a request may take to arrive.",
        "25 MiB over 5 Mbit/s; who dribbles bytes to hold a connection is gone after it")
    http_keep_alive: float = setting("75s", duration("100ms"),
        "How long an idle connection is kept open.",
        "longer than the minute that proxies keep theirs, so that none is closed under a request")
    http_connections_per_peer: int = setting("200", integer(1, 1_000_000),
        "Most open HTTP connections from one address (of IPv6, one /64 network); trusted_proxies may have more.",
        "one client cannot take all places, and the pool of a busy application fits")
    trusted_proxies: tuple[Network, ...] = setting(None, NETWORKS,
        "Proxies whose X-Forwarded-For or Forwarded header names the client, for limits and throttling alike.",
        "anybody can write such a header", unset="none: a client is whoever is connected")
    metrics_access: str = setting("key", one_of("key", "open"),
        "Who may read /metrics: who has a key with the scope metrics, or with `open` everybody.",
        "they name tenants and providers, and show how busy you are")
    log_format: str = setting("auto", one_of("auto", "console", "json"),
        "How log lines look.",
        "auto: readable on a terminal, JSON elsewhere")
    log_level: str = setting("info", one_of("debug", "info", "warning", "error"),
        "The least important log lines shown.",
        "info tells every mail's story in one line per attempt; of `up`, a summary every ten seconds unless --verbose")
    secret_keys: tuple[Secret, ...] = setting(None, KEYS,
        "Keys that seal provider secrets at rest, and hash sign-in codes; the first seals, all open.",
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
    retention_webhooks: float | None = setting("30d", duration("1s", or_off=True),
        "Age at which webhook calls are deleted from their log; those of a deleted mail go with it.",
        "replaying is for outages of days")
    retention_tokens: float | None = setting("90d", duration("1s", or_off=True),
        "Age at which tokens of accounts are deleted that were used or have expired; off keeps them.",
        "as long as the story of their mails")
    retention_interval: float = setting("10m", duration("10ms"),
        "How often retention runs.",
        "small steps keep tables and vacuum calm")
    retention_batch: int = setting("1000", integer(1, 100_000),
        "Most rows per retention statement.",
        "a statement stays well under a second")
    suppression_expiry: float | None = setting("off", duration("1s", or_off=True),
        "After how long addresses that bounces and complaints put on a suppression list are taken off; off: never.",
        "who complained does not change their mind, and a mailbox that is gone seldom comes back")
    development: str = setting("auto", one_of("auto", "on", "off"),
        "Whether `up` gives full access to every process on this machine, without a key. `serve` never does.",
        "auto: with the embedded PostgreSQL, which nobody has in production")
    auth_failures_per_minute: int = setting("10", integer(1, 1_000_000),
        "Wrong tries at a key or login from one address before it must wait; an address may fail ten times as often.",
        "more than a person mistypes, far too few to guess, and the database hears of no more")
    smtp: str | None = setting(None, LISTEN_OR_OFF,
        "Where `up` listens for SMTP of clients on this machine, with any login or none. Loopback only.",
        "an application under development needs no account and no certificate",
        unset="127.0.0.1:1025 in `up` with the embedded PostgreSQL, else off")
    smtp_starttls: str | None = setting(None, LOCAL_LISTEN,
        "Where `up` listens like smtp, with STARTTLS: with smtp_certificate, or else with one that it makes.",
        "only for applications that insist on TLS; it prints the file of the CA that they have to trust", unset="off")
    smtp_submission: str | None = setting(None, LISTEN,
        "Where SMTP listens for clients that begin TLS (STARTTLS) and log in.",
        "only you know where clients come from; the usual port is 587", unset="off")
    smtp_tls: str | None = setting(None, LISTEN,
        "Where SMTP listens for clients that speak TLS from the first byte and log in.",
        "only you know where clients come from; the usual port is 465", unset="off")
    smtp_certificate: Path | None = setting(None, PATH,
        "File with the certificate chain (PEM) of smtp_submission and smtp_tls; read again when it changes.",
        "passwords are taken over TLS only")
    smtp_private_key: Path | None = setting(None, PATH,
        "File with the private key (PEM) of smtp_certificate.",
        "some tools keep it beside the certificate, some in the same file", unset="in smtp_certificate")
    smtp_hostname: str | None = setting(None, HOST,
        "The name by which SMTP introduces itself, also in Received lines.",
        "clients compare it with nothing; readers of a mail's path like to see it", unset="the machine's name")
    smtp_max_message: int = setting("10MB", size(2**10),
        "Largest mail by SMTP; a tenant may have a lower limit.",
        "most mails have less than a hundredth of it, and relays begin to refuse there")
    smtp_max_recipients: int = setting("100", integer(1, 100),
        "Most recipients of one mail by SMTP.",
        "what every server must take (RFC 5321), and the most a message has here")
    smtp_max_line: int = setting("2048", integer(512, 65_536),
        "Longest SMTP command, in octets; AUTH may have 12288 (RFC 4954).",
        "512 of RFC 5321, what the extensions add, and addresses in UTF-8")
    smtp_max_text_line: int = setting("64KiB", size(998),
        "Longest line of a mail by SMTP.",
        "RFC 5322 says 998, but HTML written in one line is common and relays fold it")
    smtp_max_header: int = setting("128KiB", size(2**10),
        "Longest header section of a mail by SMTP.",
        "many times what real mails have, with every signature and trace line")
    smtp_max_header_lines: int = setting("1000", integer(10, 100_000),
        "Most lines in the header section of a mail by SMTP.",
        "a hundred recipients on a line each, ten times over")
    smtp_max_nesting: int = setting("100", integer(2, 10_000),
        "Most multipart and message parts in a mail by SMTP: each may lie within another.",
        "mail programs make three or four; readers that go down level by level run out of stack far beyond")
    smtp_max_errors: int = setting("20", integer(1, 10_000),
        "Refused commands after which an SMTP session is ended; an accepted mail starts the count anew.",
        "a mistyped address list is forgiven, guessing and noise are not")
    smtp_max_commands: int = setting("1000", integer(100, 1_000_000),
        "Most SMTP commands from one accepted mail to the next.",
        "a hundred recipients with room to spare; keeps nobody busy for nothing")
    smtp_max_messages: int = setting("10000", integer(1, 10**9),
        "Most mails over one SMTP connection.",
        "a balancer in front gets a chance to spread long-lived connections")
    smtp_idle_timeout: float = setting("5m", duration("100ms"),
        "Longest time from one SMTP command to the next.",
        "what RFC 5321 asks of a server")
    smtp_mail_timeout: float = setting("10m", duration("100ms"),
        "Longest time for the content of one mail to arrive.",
        "the largest mail over 150 kbit/s; who dribbles bytes is gone after it")
    smtp_login_timeout: float = setting("1m", duration("100ms"),
        "Longest time from connecting to being logged in, where one must.",
        "programs need a second; strangers hold no connection longer")
    smtp_connections: int = setting("1000", integer(1, 1_000_000),
        "Most open SMTP connections of a process; more are told to come back.",
        "ten times what keeps the database busy, at some kilobytes each")
    smtp_connections_per_peer: int = setting("200", integer(1, 1_000_000),
        "Most open SMTP connections from one address (of IPv6, one /64 network); trusted_proxies may have more.",
        "one client cannot take all places; name a balancer in trusted_proxies")
    smtp_bytes_in_flight: int = setting("256MiB", size(2**20),
        "Most bytes of mails that SMTP holds in memory at once, all together.",
        "twenty-five of the largest or tens of thousands of usual ones; beyond it, clients are told to try again")
    webhook_allow_private: bool = setting("false", boolean(),
        "Whether webhooks may go to http:// and to private addresses, such as this machine. For development.",
        "a customer could make this server call others behind your firewall")
    webhook_ca_file: Path | None = setting(None, PATH,
        "File with certificates (PEM) of authorities that webhooks' servers may be signed by, beside the system's.",
        "customers' servers have public certificates; those of your own network may not")
    webhook_timeout: float = setting("15s", duration("100ms"),
        "How long a webhook call may take.",
        "Standard Webhooks suggests 15 to 30 seconds; a receiver that works longer should answer first")
    webhook_disable_after: float = setting("3d", duration("1s"),
        "How long a webhook may do nothing but fail before it is disabled.",
        "as long as calls are repeated; a long weekend is no reason")
    webhook_concurrency: int = setting("50", integer(1, 1000),
        "Most webhook calls made at once by one process; a fifth of them to one webhook.",
        "hundreds of calls per second to usual receivers, and a slow one cannot take every place")
    feedback_max_body: int = setting("4MiB", size(2**10),
        "Largest body of a request with feedback from a provider, and of a report.",
        "SendGrid gathers some thousand events in one; most requests have a few kilobytes")
    feedback_window: float = setting("1d", duration("1m"),
        "How old the time stamp of feedback from a provider may be.",
        "providers repeat for hours what was not taken; what comes twice changes nothing")
    return_path_domain: str | None = setting(None, text("a domain such as bounces.example.com", r"[A-Za-z0-9.-]+"),
        "Domain of the envelope senders of mails that leave by SMTP: each names its message, signed.",
        "bounces go to the sender until a domain is set up for them", unset="the sender's own address")
    lifecycle_schema: str = setting("lifecycle", NAME,
        "The schema of accounts and tokens.",
        "apart from your own tables and from Pillarbox's")
    lifecycle_tenant: str = setting("default", text("the name of a tenant"),
        "The tenant whose mails the mails of accounts are.",
        "most installations have one product")
    lifecycle_sender: str | None = setting(None, MAILBOX,
        "Sender of the mails of accounts.",
        "a portal may have its own", unset="the portal's, else the tenant's default sender")
    lifecycle_url: str | None = setting(None, WEB,
        "Where the links in mails of accounts lead: the address of this server, or of a page of yours.",
        "only you know under which name people reach you", unset="the address of http")
    recovery_hook_url: str | None = setting(None, WEB,
        "Endpoint of your application that sets a new password, which people choose on the page /recover.",
        "passwords are your application's", unset="none: the page sends people to your application")
    recovery_hook_secret: Secret | None = setting(None, KEY,
        "Key that signs calls to recovery_hook_url.",
        "your application must know that a call is ours", secret=True)
    recovery_hook_timeout: float = setting("10s", duration("100ms"),
        "How long a call to recovery_hook_url may take.",
        "a person waits, and hashing a password takes a second at most")
    lifecycle_keys: tuple[RetiringKey, ...] = setting(None, RETIRING_KEYS,
        "Keys that sign links; the first signs, all verify until their day.",
        "production sets its own; a day in the future lets links of the old key work until then",
        short="MAILROOM_SECRET_KEY", unset="made by `up` in data_dir", secret=True)
    lifecycle_locale: str = setting("en", LOCALE,
        "The language of mails to accounts that name none.",
        "every template that comes with Pillarbox has it")
    lifecycle_batch_limit: int | None = setting(None, integer(1, 10_000),
        "Most tokens that are collected at once.",
        "the rate at which tokens arrive says how many are worth waiting for",
        short="MAILROOM_BATCH_LIMIT", unset="follows the rate; 10 with --stdout")
    lifecycle_batch_timeout: float | None = setting(None, milliseconds(),
        "How long a collector waits for a batch to fill.",
        "nobody should wait for others who may never come",
        short="MAILROOM_BATCH_TIMEOUT", unset="follows the rate; 5000 with --stdout")
    lifecycle_channel: str = setting("token_insert", NAME,
        "The channel on which an inserted token is told.",
        "the original's name", short="MAILROOM_CHANNEL_NAME")
    lifecycle_queue: str = setting("mailroom", NAME,
        "The row of `jobs` that shows how far collecting got.",
        "the original's name", short="MAILROOM_QUEUE_NAME")
    lifecycle_healthcheck: float = setting("270s", milliseconds(),
        "How long a collector's connection may be silent before it is tried.",
        "firewalls forget silent connections after five minutes", short="MAILROOM_HEALTHCHECK_INTERVAL")
    template_dirs: tuple[Path, ...] = setting(None, PATHS,
        "Folders with templates of your own; a template of the same name comes before ours.",
        "none until you have some", unset="those that come with Pillarbox alone")
    code_lifetime: float = setting("10m", duration("10s"),
        "How long a sign-in code can be used.",
        "long enough for a mail that comes late, short enough for a screen left open")
    code_tries: int = setting("5", integer(1, 20),
        "How often a sign-in code, or the code of a link, may be wrong before it is void.",
        "five of a million: guessing is hopeless, mistyping forgiven")
    code_pause: float = setting("1m", duration("0s"),
        "For how long asking again for a sign-in code mails nothing new.",
        "nobody's mailbox is filled by somebody else")
    admin_session: float = setting("12h", duration("1m"),
        "How long an administrator stays signed in.",
        "a working day")
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
    def is_development(self) -> bool:
        """Whether this is an installation for development: `up` asks clients on this machine for no key."""
        return self.development == "on" or (self.development == "auto" and self.database_url is None)

    @property
    def smtp_addresses(self) -> dict[str, tuple[str, int]]:
        """Where SMTP listens, by the name of the setting that says so."""
        names = ("smtp", "smtp_starttls", "smtp_submission", "smtp_tls")
        given = {name: getattr(self, name) for name in names}
        return {name: split_address(where) for name, where in given.items() if where not in (None, "off")}

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port of `http`, an IPv6 host without its brackets."""
        return split_address(self.http)

    def describe(self) -> list[SettingRow]:
        """Every setting with its value and where it came from; secrets hidden."""
        return [_row(self, name, spec) for name, spec in SPECS.items()]


def split_address(listen: str) -> tuple[str, int]:
    """Host and port, an IPv6 host without its brackets."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


SPECS: dict[str, SettingSpec] = {f.name: f.metadata["spec"] for f in fields(Settings) if "spec" in f.metadata}
DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Settings) if f.name in SPECS}


def _row(settings: Settings, name: str, spec: SettingSpec) -> SettingRow:
    value = getattr(settings, name)
    source = settings.sources.get(name, "default")
    unset = source == "default" and value == spec.kind.empty
    shown = spec.default if unset else spec.kind.show(value)
    env = PREFIX + name.upper()
    return SettingRow(
        name, env, spec.short, name, shown, spec.default, source, spec.kind.allowed, spec.help, spec.why
    )


def load(
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read all settings, or raise one SettingsError that names everything wrong."""
    env = os.environ if env is None else env
    sources = SettingSources(SPECS)
    sources.file(env, file)
    sources.environment(env)
    sources.flags(overrides or {})
    values = dict(sources.read())
    problems = [*sources.problems, *_contradictions(values)]
    if problems:
        raise SettingsError("\n".join(problems))
    return Settings(**values, sources={name: one.source for name, one in sources.given.items()})


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    least, most = (values.get(name, DEFAULTS[name]) for name in ("pool_min", "pool_max"))
    if least > most:
        yield f"pool_min is {least}, more than pool_max, which is {most}"
    body, room = (values.get(name, DEFAULTS[name]) for name in ("http_max_body", "http_bytes_in_flight"))
    if body > room:
        yield f"http_max_body is {body}, more than http_bytes_in_flight, which is {room}"
    if hook := values.get("recovery_hook_url"):
        if values.get("recovery_hook_secret") is None:
            yield "recovery_hook_url is set, but not recovery_hook_secret: calls must be signed"
        if urlsplit(hook).scheme != "https" and urlsplit(hook).hostname not in ("localhost", "127.0.0.1", "::1"):
            yield "recovery_hook_url must begin with https://, unless it is on this machine: passwords go there"
    if values.get("smtp_certificate") is None:
        for name in ("smtp_submission", "smtp_tls"):
            if values.get(name) is not None:
                yield f"{name} is set, but not smtp_certificate: passwords are taken over TLS only"
