"""Whether a principal may make a mail leave that was accepted before, perhaps from another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.accept.prepare import check_from
from pillarbox.errors import InvalidMail, NotAllowed
from pillarbox.model.access import Principal, check_allowed
from pillarbox.model.raw_mail import as_sent, header_end

if TYPE_CHECKING:
    from pillarbox.store.dlq import OutgoingEnvelope


def is_restricted(principal: Principal) -> bool:
    """Whether the principal may not send from and to everywhere."""
    tenant = principal.tenant
    return bool(
        principal.sender_domains
        or principal.recipient_domains
        or (tenant and tenant.sender_domains)
    )


def may_leave(principal: Principal, what: OutgoingEnvelope) -> bool:
    """Whether the principal could hand this mail over, judged by its senders and its recipient."""
    try:
        check_leaving(principal, what)
    except (NotAllowed, InvalidMail):
        return False
    return True


def check_leaving(principal: Principal, what: OutgoingEnvelope) -> None:
    """Raise NotAllowed or InvalidMail if the principal could not hand this mail over."""
    check_allowed(principal, what.sender, [what.recipient], size=0)
    if what.head is None:
        return
    head = as_sent(what.head)
    if what.cut and header_end(head) == len(head):
        raise InvalidMail(
            "bad_header",
            "raw",
            "the header section is too long",
            "use a key without sender domains",
        )
    check_from(principal, head)
