"""The e-mail backend: enqueues mails on Django's connection, in its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.mail.backends.base import BaseEmailBackend
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from pillarbox.accept.enqueue import enqueue_many
from pillarbox.accept.mail import Mail
from pillarbox.django.convert import to_mail
from pillarbox.errors import PillarboxError


class EmailBackend(BaseEmailBackend):  # type: ignore[misc]  # Django has no types
    """Enqueues e-mails in the transaction of the database `using`; sent only if it commits.

    Without arguments the settings PILLARBOX_DATABASE (an alias of DATABASES) and PILLARBOX_TENANT
    are used.
    """

    def __init__(
        self,
        fail_silently: bool = False,
        *,
        using: str | None = None,
        tenant: str | None = None,
        **others: Any,
    ) -> None:
        super().__init__(fail_silently=fail_silently, **others)
        self.using = using or getattr(settings, "PILLARBOX_DATABASE", DEFAULT_DB_ALIAS)
        self.tenant = tenant or getattr(settings, "PILLARBOX_TENANT", None)

    def send_messages(self, email_messages: Sequence[Any]) -> int:
        """Enqueue all messages or none; with fail_silently, the valid ones. Returns how many."""
        messages = [message for message in email_messages or () if message.recipients()]
        if not self.fail_silently:
            return self._enqueue(messages)
        return sum(self._enqueue_silently(message) for message in messages)

    def _enqueue_silently(self, message: Any) -> int:
        try:
            return self._enqueue([message])
        except (PillarboxError, Error):
            return 0

    def _enqueue(self, messages: Sequence[Any]) -> int:
        mails = [to_mail(message, self.tenant) for message in messages]
        if mails:
            for message, message_id in zip(messages, self._ids(mails), strict=True):
                message.pillarbox_id = message_id
        return len(mails)

    def _ids(self, mails: Sequence[Mail]) -> Sequence[Any]:
        """Store the mails, all or none; returns their ids. An error keeps the caller's changes."""
        connection = connections[self.using]
        with transaction.atomic(using=self.using):
            connection.validate_no_broken_transaction()
            connection.ensure_connection()
            with connection.wrap_database_errors:
                # Not by Django's cursor: with DEBUG it keeps whole mails in its query log.
                ids: Sequence[Any] = enqueue_many(connection.connection, mails)
        return ids
