"""Every setting, and the only reader of the environment and of pillarbox.toml.

A setting `x` is `--x` on the command line, PILLARBOX_X in the environment and `x = …` in
pillarbox.toml; the first of these wins over the next, and all win over the default. Some settings
have a short name in the environment, too (SMTP_HOST).
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
    """A row of `pillarbox config` and of the reference page; a secret's value is ****."""

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
    """Declare a setting: its default as written by a person, its kind, its help and its reason.

    A setting without a default shows `unset` instead.
    """
    if default is None:
        value, shown = kind.empty, unset
    else:
        value, shown = kind.read(default), default
    spec = SettingSpec(kind, shown, help, why, short, secret)
    return field(default=value, repr=not secret, metadata={"spec": spec})


# fmt: off
@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process. Durations are seconds, sizes bytes; None: not set, or off."""

    database_url: str | None = setting(None, URL,
        "The PostgreSQL database.",
        "a first run needs no server",
        short="MAILROOM_DATABASE_URL", unset="embedded PostgreSQL in data_dir", secret=True)
    data_dir: Path = setting(".pillarbox", PATH,
        "Directory of the embedded PostgreSQL and of the development key.",
        "beside the project, easy to see and to delete")
    http: str = setting("127.0.0.1:8025", LISTEN,
        "Address on which the API and the dashboard listen.",
        "reachable from this machine only, until you change it")
    http_hosts: tuple[str, ...] = setting(None, HOSTS,
        "Further host names under which the API is reached; * for any.",
        "refuses requests of web pages whose own host name points to this machine",
        unset="the address of http alone")
    http_max_body: int = setting("36MiB", size(2**10),
        "Largest body of a request.",
        "a mail of 25 MiB with its files as base64, and room for the rest of the JSON")
    http_bytes_in_flight: int = setting("128MiB", size(2**20),
        "Most bytes of request bodies held at once, in total.",
        "three of the largest bodies in a 1 GB container: each exists in several copies")
    http_concurrency: int = setting("500", integer(1, 100_000),
        "Most requests handled at once.",
        "ten times what keeps the database busy; more would only wait longer")
    http_connections: int = setting("800", integer(1, 1_000_000),
        "Most open HTTP connections; at the limit the connection idle for longest is closed.",
        "the usual limit is 1,024 open files, and the database needs some; raise both together")
    http_request_timeout: float = setting("1m", duration("100ms"),
        "How long a request may take to arrive.",
        "25 MiB over 5 Mbit/s; a client that sends slower is disconnected")
    http_keep_alive: float = setting("75s", duration("100ms"),
        "How long an idle connection is kept open.",
        "longer than the usual minute of proxies, so that the proxy closes first")
    http_connections_per_peer: int = setting("200", integer(1, 1_000_000),
        "Most open HTTP connections from one address (IPv6: one /64 network),"
        " trusted_proxies excepted.",
        "one client cannot use all connections, and the pool of a busy application fits")
    trusted_proxies: tuple[Network, ...] = setting(None, NETWORKS,
        "Proxies whose X-Forwarded-For or Forwarded header names the client,"
        " for limits and throttling.",
        "any client can write such a header", unset="none: the client is the connected address")
    metrics_access: str = setting("key", one_of("key", "open"),
        "Who may read /metrics: clients with a key of the scope metrics, or with `open` everyone.",
        "metrics name tenants and providers, and show the load")
    log_format: str = setting("auto", one_of("auto", "console", "json"),
        "The format of log lines.",
        "auto: readable on a terminal, JSON elsewhere")
    log_level: str = setting("info", one_of("debug", "info", "warning", "error"),
        "The lowest level of log lines that are written.",
        "info writes a line per attempt; `up` writes a summary every ten seconds unless --verbose")
    secret_keys: tuple[Secret, ...] = setting(None, KEYS,
        "Keys that encrypt provider secrets and hash sign-in codes:"
        " the first encrypts, all decrypt.",
        "production sets its own, separate from the database",
        unset="made by `up` in data_dir", secret=True)
    redaction_key: Secret | None = setting(None, KEY,
        "Key of the pseudonyms that replace addresses in logs and error columns.",
        "one secret fewer to manage", unset="made once, kept in the database", secret=True)
    worker_enabled: bool = setting("true", boolean(),
        "Whether this process delivers mail.",
        "one process does everything until you split it", short="EMAIL_WORKER_ENABLED")
    worker_concurrency: int = setting("10", integer(1, 1000),
        "Connections per provider.",
        "acceptable for a shared relay, and enough to hide its latency")
    worker_pipeline: int = setting("10", integer(1, 1000),
        "Mails assigned to each connection at once; window = concurrency × pipeline.",
        "hides the claim's round trip; a larger window leaves more mails unknown after a crash")
    worker_batch_size: int | None = setting(None, integer(1, 100_000),
        "Most deliveries per claim; never more than the window.",
        "a full window per claim needs the fewest statements per mail",
        short="EMAIL_WORKER_BATCH_SIZE", unset="the window")
    worker_bytes_in_flight: int = setting("64MiB", size(2**20),
        "Most bytes of content a worker holds at once.",
        "two mails at the usual 25 MB limit, in a 256 MB container")
    worker_poll_interval: float = setting("5s", duration("10ms"),
        "Interval of polling for due mail, independent of notifications.",
        "the longest delay caused by a missed notification", short="EMAIL_WORKER_POLL_INTERVAL")
    worker_lease: float = setting("1m", duration("1s"),
        "How long a claim lasts unless renewed.",
        "longer than a slow SMTP session, short enough to recover from a crash in a minute")
    worker_drain_timeout: float = setting("30s", duration("0s"),
        "How long a stopping worker waits for mails in flight.",
        "what container platforms allow before they kill")
    notify: bool = setting("true", boolean(),
        "Whether workers listen for NOTIFY; off leaves polling alone.",
        "mails leave within milliseconds; off for PgBouncer in transaction mode")
    reap_interval: float = setting("10s", duration("10ms"),
        "How often claims of dead workers are looked for.",
        "small compared with the lease, and one cheap statement")
    depth_alert: int = setting("10000", integer(1, 10**15),
        "Queue depth that raises the depth alert.",
        "several seconds of one worker's throughput: more means that delivery is stuck")
    utilisation_alert: float = setting("0.8", fraction(),
        "Worker utilisation that raises an alert.",
        "waiting times rise steeply above it")
    retention_content: float | None = setting("30d", duration("1s", or_off=True),
        "Age at which a finished mail's bodies and files are deleted.",
        "long enough for questions, short enough for data protection")
    retention_finished: float | None = setting("90d", duration("1s", or_off=True),
        "Age at which finished mails and their history are deleted.",
        "a quarter of a year")
    retention_webhooks: float | None = setting("30d", duration("1s", or_off=True),
        "Age at which webhook calls are deleted from their log;"
        " calls of a deleted mail are deleted with it.",
        "replaying is for outages of days")
    retention_tokens: float | None = setting("90d", duration("1s", or_off=True),
        "Age at which used and expired tokens of accounts are deleted; off keeps them.",
        "as long as the history of their mails")
    retention_interval: float = setting("10m", duration("10ms"),
        "How often retention runs.",
        "small steps keep the load of deleting and vacuuming low")
    retention_batch: int = setting("1000", integer(1, 100_000),
        "Most rows per retention statement.",
        "a statement stays well under a second")
    suppression_expiry: float | None = setting("off", duration("1s", or_off=True),
        "Age at which suppressions added by bounces and complaints are removed; off: never.",
        "complaints are rarely withdrawn, and a deleted mailbox rarely comes back")
    development: str = setting("auto", one_of("auto", "on", "off"),
        "Whether `up` gives full access to every process on this machine, without a key."
        " `serve` never does.",
        "auto: with the embedded PostgreSQL, which production does not use")
    auth_failures_per_minute: int = setting("10", integer(1, 1_000_000),
        "Failed attempts per minute at one key or login from one address before it must wait;"
        " ten times as many for the address in total.",
        "more than typing errors, far too few for guessing")
    smtp: str | None = setting(None, LISTEN_OR_OFF,
        "Address on which `up` accepts SMTP from this machine, with any login or without one."
        " Loopback only.",
        "an application under development needs no account and no certificate",
        unset="127.0.0.1:1025 in `up` with the embedded PostgreSQL, else off")
    smtp_starttls: str | None = setting(None, LOCAL_LISTEN,
        "Address on which `up` accepts SMTP like smtp, with STARTTLS:"
        " with smtp_certificate, or a certificate that it creates.",
        "only for applications that require TLS; `up` prints the file of the CA to trust",
        unset="off")
    smtp_submission: str | None = setting(None, LISTEN,
        "Address on which SMTP accepts clients that begin TLS (STARTTLS) and log in.",
        "only you know where clients come from; the usual port is 587", unset="off")
    smtp_tls: str | None = setting(None, LISTEN,
        "Address on which SMTP accepts clients that use TLS from the first byte and log in.",
        "only you know where clients come from; the usual port is 465", unset="off")
    smtp_certificate: Path | None = setting(None, PATH,
        "File with the certificate chain (PEM) of smtp_submission and smtp_tls;"
        " read again when it changes.",
        "passwords are accepted over TLS only")
    smtp_private_key: Path | None = setting(None, PATH,
        "File with the private key (PEM) of smtp_certificate.",
        "some tools keep it beside the certificate, some in the same file",
        unset="in smtp_certificate")
    smtp_hostname: str | None = setting(None, HOST,
        "The host name in the SMTP greeting and in Received lines.",
        "clients do not check it; it helps people who read Received lines",
        unset="the machine's name")
    smtp_max_message: int = setting("10MB", size(2**10),
        "Largest mail by SMTP; a tenant may have a lower limit.",
        "most mails are a hundred times smaller, and many relays refuse larger ones")
    smtp_max_recipients: int = setting("100", integer(1, 100),
        "Most recipients of one mail by SMTP.",
        "what RFC 5321 requires of a server, and the limit of a message here")
    smtp_max_line: int = setting("2048", integer(512, 65_536),
        "Longest SMTP command, in bytes; AUTH may have 12288 (RFC 4954).",
        "512 of RFC 5321, what the extensions add, and addresses in UTF-8")
    smtp_max_text_line: int = setting("64KiB", size(998),
        "Longest line of a mail by SMTP.",
        "RFC 5322 allows 998, but HTML written in one line is common and relays fold it")
    smtp_max_header: int = setting("128KiB", size(2**10),
        "Longest header section of a mail by SMTP.",
        "many times the size of real ones, including signatures and trace lines")
    smtp_max_header_lines: int = setting("1000", integer(10, 100_000),
        "Most lines in the header section of a mail by SMTP.",
        "ten times a hundred recipients with a line each")
    smtp_max_nesting: int = setting("100", integer(2, 10_000),
        "Most multipart and message parts in a mail by SMTP: each may contain another.",
        "mail programs create three or four; recursive parsers fail only far above it")
    smtp_max_errors: int = setting("20", integer(1, 10_000),
        "Refused commands after which an SMTP session is closed; an accepted mail resets it.",
        "tolerates a list with wrong addresses, but not guessing")
    smtp_max_commands: int = setting("1000", integer(100, 1_000_000),
        "Most SMTP commands from one accepted mail to the next.",
        "several times what a mail with a hundred recipients needs")
    smtp_max_messages: int = setting("10000", integer(1, 10**9),
        "Most mails over one SMTP connection.",
        "lets a load balancer distribute long-lived connections")
    smtp_idle_timeout: float = setting("5m", duration("100ms"),
        "Longest time from one SMTP command to the next.",
        "what RFC 5321 requires of a server")
    smtp_mail_timeout: float = setting("10m", duration("100ms"),
        "Longest time for the content of one mail to arrive.",
        "the largest mail over 150 kbit/s; a client that sends slower is disconnected")
    smtp_login_timeout: float = setting("1m", duration("100ms"),
        "Longest time from connecting to a successful login, where a login is required.",
        "programs need a second; other connections are closed after it")
    smtp_connections: int = setting("1000", integer(1, 1_000_000),
        "Most open SMTP connections of a process; further clients are refused temporarily (421).",
        "ten times what keeps the database busy, at some kilobytes each")
    smtp_connections_per_peer: int = setting("200", integer(1, 1_000_000),
        "Most open SMTP connections from one address (IPv6: one /64 network),"
        " trusted_proxies excepted.",
        "one client cannot use all connections; list a load balancer in trusted_proxies")
    smtp_bytes_in_flight: int = setting("256MiB", size(2**20),
        "Most bytes of mails that SMTP holds in memory at once, in total.",
        "twenty-five of the largest mails; above it, clients are asked to try again later")
    webhook_allow_private: bool = setting("false", boolean(),
        "Whether webhooks may go to http:// and to private addresses, such as this machine."
        " For development.",
        "a customer could make this server call others behind your firewall")
    webhook_ca_file: Path | None = setting(None, PATH,
        "File with further CA certificates (PEM) for the servers of webhooks,"
        " besides the system's.",
        "customers' servers have public certificates; servers in your own network may not")
    webhook_timeout: float = setting("15s", duration("100ms"),
        "How long a webhook call may take.",
        "Standard Webhooks suggests 15 to 30 seconds; slow receivers should answer first")
    webhook_disable_after: float = setting("3d", duration("1s"),
        "How long every call of a webhook may fail before the webhook is disabled.",
        "as long as calls are repeated; longer than a weekend")
    webhook_concurrency: int = setting("50", integer(1, 1000),
        "Most webhook calls made at once by one process; a fifth of them to one webhook.",
        "hundreds of calls per second to usual receivers; a slow one cannot use all connections")
    feedback_max_body: int = setting("4MiB", size(2**10),
        "Largest body of a request with feedback from a provider, and of a report.",
        "SendGrid sends up to some thousand events in one; most requests have a few kilobytes")
    feedback_window: float = setting("1d", duration("1m"),
        "How old the time stamp of feedback from a provider may be.",
        "providers repeat failed requests for hours; duplicates change nothing")
    return_path_domain: str | None = setting(
        None, text("a domain such as bounces.example.com", r"[A-Za-z0-9.-]+"),
        "Domain of the envelope senders of mails sent by SMTP; each names its message, signed.",
        "bounces go to the sender until a domain is set up for them",
        unset="the sender's own address")
    lifecycle_schema: str = setting("lifecycle", NAME,
        "The schema of accounts and tokens.",
        "separate from your own tables and from Pillarbox's")
    lifecycle_tenant: str = setting("default", text("the name of a tenant"),
        "The tenant to which mails of accounts belong.",
        "most installations have one product")
    lifecycle_sender: str | None = setting(None, MAILBOX,
        "Sender of the mails of accounts.",
        "a portal may have its own", unset="the portal's, else the tenant's default sender")
    lifecycle_url: str | None = setting(None, WEB,
        "Base URL of links in mails of accounts: this server, or a page of your application.",
        "only you know the public name of this server", unset="the address of http")
    recovery_hook_url: str | None = setting(None, WEB,
        "Endpoint of your application that sets a new password chosen on the page /recover.",
        "your application stores the passwords",
        unset="none: the page sends people to your application")
    recovery_hook_secret: Secret | None = setting(None, KEY,
        "Key that signs calls to recovery_hook_url.",
        "your application must be able to verify that Pillarbox makes the call", secret=True)
    recovery_hook_timeout: float = setting("10s", duration("100ms"),
        "How long a call to recovery_hook_url may take.",
        "a person waits, and hashing a password takes a second at most")
    lifecycle_keys: tuple[RetiringKey, ...] = setting(None, RETIRING_KEYS,
        "Keys that sign links: the first signs, all verify until their day of expiry.",
        "production sets its own; links signed with an old key work until its day of expiry",
        short="MAILROOM_SECRET_KEY", unset="made by `up` in data_dir", secret=True)
    lifecycle_locale: str = setting("en", LOCALE,
        "The language of mails to accounts without a language of their own.",
        "every template that comes with Pillarbox has it")
    lifecycle_batch_limit: int | None = setting(None, integer(1, 10_000),
        "Most tokens that are collected at once.",
        "the rate at which tokens arrive decides how many are worth waiting for",
        short="MAILROOM_BATCH_LIMIT", unset="follows the rate; 10 with --stdout")
    lifecycle_batch_timeout: float | None = setting(None, milliseconds(),
        "How long a collector waits for a batch to fill.",
        "a token should not wait for others that may never arrive",
        short="MAILROOM_BATCH_TIMEOUT", unset="follows the rate; 5000 with --stdout")
    lifecycle_channel: str = setting("token_insert", NAME,
        "The channel on which inserted tokens are notified.",
        "the original's name", short="MAILROOM_CHANNEL_NAME")
    lifecycle_queue: str = setting("mailroom", NAME,
        "The row of `jobs` that shows the progress of collecting.",
        "the original's name", short="MAILROOM_QUEUE_NAME")
    lifecycle_healthcheck: float = setting("270s", milliseconds(),
        "How long a collector's connection may be silent before it is checked.",
        "firewalls drop silent connections after five minutes",
        short="MAILROOM_HEALTHCHECK_INTERVAL")
    template_dirs: tuple[Path, ...] = setting(None, PATHS,
        "Folders with your own templates; they override Pillarbox's templates of the same name.",
        "none until you have some", unset="Pillarbox's own templates alone")
    code_lifetime: float = setting("10m", duration("10s"),
        "How long a sign-in code can be used.",
        "long enough for a slow mail, short enough for a screen left open")
    code_tries: int = setting("5", integer(1, 20),
        "How many wrong attempts a sign-in code, or the code of a link, allows.",
        "five of a million: guessing is hopeless, typing errors are forgiven")
    code_pause: float = setting("1m", duration("0s"),
        "For how long a repeated request for a sign-in code sends no new mail.",
        "a stranger cannot fill another person's mailbox")
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
        "Sender of mails without a sender.",
        "only you know an address you may send from",
        short="SMTP_FROM_ADDRESS", unset="none: each mail names its sender")
    smtp_from_name: str | None = setting(None, text("a name on one line"),
        "Display name of smtp_from_address.",
        "an address alone is valid", short="SMTP_FROM_NAME")
    pool_min: int = setting("1", integer(0, 1000),
        "PostgreSQL connections kept open.",
        "an idle process uses one connection of the server")
    pool_max: int = setting("8", integer(1, 1000),
        "Most PostgreSQL connections.",
        "claim, settle, reap, retention and the API; ten processes fit max_connections=100")
    statement_cache: bool = setting("true", boolean(),
        "Prepare statements once per connection.",
        "planning costs more than running; off for PgBouncer in transaction mode")
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # fmt: on

    @property
    def window(self) -> int:
        """Most messages a worker holds at once: at most so many become unknown by a crash."""
        return self.worker_concurrency * self.worker_pipeline

    @property
    def claim_limit(self) -> int:
        """Most deliveries per claim: never more than can start at once."""
        return min(self.worker_batch_size or self.window, self.window)

    @property
    def is_development(self) -> bool:
        """Whether `up` gives clients on this machine access without a key."""
        if self.development == "auto":
            return self.database_url is None
        return self.development == "on"

    @property
    def smtp_addresses(self) -> dict[str, tuple[str, int]]:
        """Host and port of each SMTP listener, by the name of its setting."""
        names = ("smtp", "smtp_starttls", "smtp_submission", "smtp_tls")
        given = {name: getattr(self, name) for name in names}
        return {
            name: split_address(address)
            for name, address in given.items()
            if address not in (None, "off")
        }

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port of `http`, an IPv6 host without its brackets."""
        return split_address(self.http)

    def describe(self) -> list[SettingRow]:
        """Every setting with its value and its source; secrets hidden."""
        return [_row(self, name, spec) for name, spec in SPECS.items()]


def split_address(listen: str) -> tuple[str, int]:
    """Host and port, an IPv6 host without its brackets."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


SPECS: dict[str, SettingSpec] = {
    field.name: field.metadata["spec"] for field in fields(Settings) if "spec" in field.metadata
}
DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in fields(Settings) if field.name in SPECS
}


def _row(settings: Settings, name: str, spec: SettingSpec) -> SettingRow:
    value = getattr(settings, name)
    source = settings.sources.get(name, "default")
    if source == "default" and value == spec.kind.empty:
        shown = spec.default
    else:
        shown = spec.kind.show(value)
    return SettingRow(
        name=name,
        env=PREFIX + name.upper(),
        short=spec.short,
        toml=name,
        value=shown,
        default=spec.default,
        source=source,
        allowed=spec.kind.allowed,
        help=spec.help,
        why=spec.why,
    )


def load(
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read all settings, or raise one SettingsError that lists every problem."""
    if env is None:
        env = os.environ
    sources = SettingSources(SPECS)
    sources.file(env, file)
    sources.environment(env)
    sources.flags(overrides or {})
    values = dict(sources.read())
    problems = [*sources.problems, *_contradictions(values)]
    if problems:
        raise SettingsError("\n".join(problems))
    return Settings(**values, sources={name: value.source for name, value in sources.given.items()})


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    for lower, upper in (("pool_min", "pool_max"), ("http_max_body", "http_bytes_in_flight")):
        low, high = values.get(lower, DEFAULTS[lower]), values.get(upper, DEFAULTS[upper])
        if low > high:
            yield f"{lower} is {low}, more than {upper}, which is {high}"
    if hook := values.get("recovery_hook_url"):
        if values.get("recovery_hook_secret") is None:
            yield "recovery_hook_url is set, but not recovery_hook_secret: calls must be signed"
        url = urlsplit(hook)
        if url.scheme != "https" and url.hostname not in ("localhost", "127.0.0.1", "::1"):
            yield (
                "recovery_hook_url must begin with https://, unless it is on this machine:"
                " passwords are sent there"
            )
    if values.get("smtp_certificate") is None:
        for name in ("smtp_submission", "smtp_tls"):
            if values.get(name) is not None:
                yield f"{name} is set, but not smtp_certificate: passwords need TLS"
