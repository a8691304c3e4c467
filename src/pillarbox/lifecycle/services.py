"""Composes the parts of accounts and administrators. One instance per process."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from pillarbox.errors import SecretError
from pillarbox.lifecycle.administrators import Administrators
from pillarbox.lifecycle.collector import Collector, TokenSink, batch_limits
from pillarbox.lifecycle.mail_sink import MailSink, TokenCodes, TokenMailWriter
from pillarbox.lifecycle.mail_writer import MailWriter
from pillarbox.lifecycle.one_time_codes import OneTimeCodes, open_codes
from pillarbox.lifecycle.rendering import Templates
from pillarbox.lifecycle.sign_in import SignInService
from pillarbox.lifecycle.signing_keys import key_ring
from pillarbox.lifecycle.stdout_sink import PipeWriter, StdoutSink
from pillarbox.lifecycle.template_registry import TemplateRegistry
from pillarbox.store import lifecycle_schema
from pillarbox.store.lifecycle import TokenStore
from pillarbox.supervisor import Supervisor
from pillarbox.telemetry import logs

if TYPE_CHECKING:
    from pillarbox.accept.auth import Authenticator
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database
    from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.codes")
# Seconds between two reads of the template files: a read takes milliseconds, and an author who
# edits a template sees the change soon.
REFRESH_INTERVAL = 2.0
# The same when a template is missing: requests for a missing template must not read the files
# each time.
MISSING_REFRESH_INTERVAL = 0.1


class LifecycleServices:
    """Creates each part on first use: administrators sign in without an accounts schema."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        authenticator: Authenticator,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._metrics = metrics
        self._authenticator = authenticator
        self._supervisor = supervisor or Supervisor(metrics)
        self._mail_writer = MailWriter(lambda: self.templates, settings)
        self._codes: OneTimeCodes | None = None
        self._templates: Templates | None = None
        self._templates_read_at = 0.0

    @property
    def templates(self) -> Templates:
        """The templates of this installation; files in `template_dirs` are read again in use."""
        return self._load_templates(REFRESH_INTERVAL)

    def templates_for(self, name: str) -> Templates:
        """As `templates`; if `name` is missing, the files are read again at once."""
        templates = self.templates
        if name in templates.files.templates:
            return templates
        return self._load_templates(MISSING_REFRESH_INTERVAL)

    def _load_templates(self, max_age: float) -> Templates:
        """The templates; read again if the last read is older than `max_age` seconds."""
        now = time.monotonic()
        settings = self._settings
        if self._templates is None:
            count_fallback = self._metrics.template_fallbacks.inc
            self._templates = Templates(
                settings.template_dirs, settings.lifecycle_locale, count_fallback
            )
            self._templates_read_at = now
        elif settings.template_dirs and now >= self._templates_read_at + max_age:
            self._templates.refresh()
            self._templates_read_at = now
        return self._templates

    @cached_property
    def administrators(self) -> Administrators:
        """Signs administrators in, with a password and a code."""
        return Administrators(
            self._database,
            self._settings,
            self._authenticator,
            self.codes,
            self._mail_writer,
        )

    @cached_property
    def sign_in(self) -> SignInService:
        """Signs accounts in, with a code."""
        return SignInService(
            self._database,
            self._settings,
            self.codes,
            self._mail_writer,
        )

    async def codes(self) -> OneTimeCodes:
        """The codes of this installation; its key is read once."""
        if self._codes is None:
            try:
                self._codes = await open_codes(self._database, self._settings)
            except SecretError as error:  # logged: a client does not learn which keys exist
                log.error("sign-in codes are not available", error=str(error))
                raise
        return self._codes

    async def collector(self, *, stdout: bool = False) -> Collector:
        """A collector that mails tokens, or writes them to standard output.

        Raises SchemaMismatch or SecretError if it cannot work on this installation.
        """
        async with self._database.connection() as connection:
            await lifecycle_schema.check(connection, self._settings.lifecycle_schema)
        tokens = TokenStore(self._settings.lifecycle_schema)
        codes = TokenCodes(self.codes, tokens.schema)
        registry = None
        sink: TokenSink
        if stdout:
            sink = StdoutSink(key_ring(self._settings), codes, PipeWriter())
        else:
            sink = self._mail_sink(tokens, codes)
            registry = TemplateRegistry(self._database, tokens, lambda: self.templates)
            await registry.register()
        return Collector(
            self._database,
            tokens,
            sink,
            self._metrics,
            self._settings,
            batch_limits(self._settings, stdout=stdout),
            registry,
            self._supervisor,
        )

    def _mail_sink(self, tokens: TokenStore, codes: TokenCodes) -> MailSink:
        self.templates  # noqa: B018 -- read now: a wrong folder fails here, not at the first mail
        settings = self._settings
        writer = TokenMailWriter(self._mail_writer, key_ring(settings), settings)
        return MailSink(
            self._database,
            tokens,
            writer,
            codes,
            settings.lifecycle_tenant,
        )
