"""What accounts and administrators need, put together. One for a process."""

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
    from pillarbox.lifecycle.batch_policy import BatchLimits
    from pillarbox.settings import Settings
    from pillarbox.store.database import Database
    from pillarbox.telemetry.metrics import Metrics

log = logs.get("pillarbox.codes")
# Seconds after which files of templates are read again: some milliseconds, soon enough for whoever
# mends one.
LOOK_AGAIN = 2.0
# The same where a template is missing: many requests for one that is nowhere must not read the
# files each time.
SOONEST = 0.1


class LifecycleServices:
    """Each part is made when it is asked for: nobody needs accounts to let administrators in."""

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
        self._mails = MailWriter(lambda: self.templates, settings)
        self._codes: OneTimeCodes | None = None
        self._templates: Templates | None = None
        self._read_at = 0.0

    @property
    def templates(self) -> Templates:
        """The templates of this installation; folders of your own are looked at again while they are used."""
        return self._templates_after(LOOK_AGAIN)

    def templates_for(self, name: str) -> Templates:
        """As `templates`; if this one is missing, files that came a moment ago are read at once."""
        found = self.templates
        return found if name in found.sources.templates else self._templates_after(SOONEST)

    def _templates_after(self, seconds: float) -> Templates:
        """The templates; read again if they were read so many seconds ago."""
        now = time.monotonic()
        if self._templates is None:
            missed = self._metrics.template_fallbacks.inc
            self._templates = Templates(
                self._settings.template_dirs, self._settings.lifecycle_locale, missed
            )
        elif self._settings.template_dirs and now >= self._read_at + seconds:
            self._templates.refresh()
        else:
            return self._templates
        self._read_at = now
        return self._templates

    @cached_property
    def administrators(self) -> Administrators:
        """Lets administrators in, by a password and a code."""
        return Administrators(
            self._database, self._settings, self._authenticator, self.codes, self._mails
        )

    @cached_property
    def sign_in(self) -> SignInService:
        """Lets people with accounts in, by a code."""
        return SignInService(self._database, self._settings, self.codes, self._mails)

    async def codes(self) -> OneTimeCodes:
        """The codes of this installation; its key is read once."""
        if self._codes is None:
            try:
                self._codes = await open_codes(self._database, self._settings)
            except (
                SecretError
            ) as error:  # who asks is told less: which keys there are is no business of theirs
                log.error("there can be no sign-in codes", error=str(error))
                raise
        return self._codes

    async def collector(self, *, stdout: bool = False) -> Collector:
        """What mails tokens, or writes them to standard output; SchemaMismatch, SecretError: it cannot work here."""
        async with self._database.connection() as connection:
            await lifecycle_schema.check(connection, self._settings.lifecycle_schema)
        tokens = TokenStore(self._settings.lifecycle_schema)
        codes = TokenCodes(self.codes, tokens.schema)
        rule = batch_limits(self._settings, stdout=stdout)
        if stdout:
            return self._collector(tokens, self._writing(codes), rule)
        post = self._mailing(tokens, codes)
        registry = TemplateRegistry(self._database, tokens, lambda: self.templates)
        await registry.register()
        return self._collector(tokens, post, rule, registry)

    def _collector(
        self,
        tokens: TokenStore,
        post: TokenSink,
        rule: BatchLimits,
        registry: TemplateRegistry | None = None,
    ) -> Collector:
        settings, supervisor = self._settings, self._supervisor
        return Collector(
            self._database, tokens, post, self._metrics, settings, rule, registry, supervisor
        )

    def _mailing(self, tokens: TokenStore, codes: TokenCodes) -> TokenSink:
        self.templates  # noqa: B018 -- read now: a wrong folder stops us here, not the first mail
        writer = TokenMailWriter(self._mails, key_ring(self._settings), self._settings)
        return MailSink(self._database, tokens, writer, codes, self._settings.lifecycle_tenant)

    def _writing(self, codes: TokenCodes) -> TokenSink:
        return StdoutSink(key_ring(self._settings), codes, PipeWriter())
