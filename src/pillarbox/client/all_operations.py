"""All operations of the clients."""

from __future__ import annotations

from pillarbox.client.list_operations import DeadLetterOperations, SuppressionOperations
from pillarbox.client.message_operations import MessageOperations
from pillarbox.client.sign_in_operations import SignInOperations
from pillarbox.client.webhook_operations import WebhookOperations


class AllOperations(
    MessageOperations,
    DeadLetterOperations,
    SuppressionOperations,
    WebhookOperations,
    SignInOperations,
):
    """What `AsyncClient` inherits and `Client` runs to its end."""
