"""Sends one mail through one provider immediately, without the queue: for testing a provider."""

from __future__ import annotations

from pillarbox.deliver.mime import compose
from pillarbox.deliver.transports.base import OutgoingMail, Recipient, SendResult, Transport
from pillarbox.model.address import address_of
from pillarbox.model.message import Content, Message


async def send_directly(transport: Transport, message: Message, content: Content) -> SendResult:
    """Send a mail and close the transport. Nothing is stored; ValueError for a bad address."""
    recipients = [
        Recipient(number, address_of(mailbox)) for number, mailbox in enumerate(message.to)
    ]
    outgoing = OutgoingMail(
        message.id,
        0,
        address_of(message.sender),
        recipients,
        compose(message, content),
        message=message,
        parts=content,
    )
    try:
        return await transport.send(outgoing)
    finally:
        await transport.close()
