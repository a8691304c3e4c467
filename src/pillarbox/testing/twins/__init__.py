"""Provider twins: HTTP servers that behave like SendGrid, Amazon SES with SNS, and Mailgun.

async with SendGridTwin() as twin:
    ...  # send through a provider with twin.provider_settings() and twin.secret
    mail = await twin.next_mail()
    twin.webhook_url = "http://127.0.0.1:8025/webhooks/sendgrid/1"
    await twin.feed(mail, "bounced")
"""

from pillarbox.testing.twins.base import Twin
from pillarbox.testing.twins.dials import Dials, FeedbackDials
from pillarbox.testing.twins.mail import TwinMail
from pillarbox.testing.twins.mailgun import MailgunTwin
from pillarbox.testing.twins.sendgrid import SendGridTwin
from pillarbox.testing.twins.ses import SesTwin

# By the kinds of providers that they stand for.
TWINS: dict[str, type[Twin]] = {twin.kind: twin for twin in (SendGridTwin, SesTwin, MailgunTwin)}

__all__ = [
    "TWINS",
    "Dials",
    "FeedbackDials",
    "MailgunTwin",
    "SendGridTwin",
    "SesTwin",
    "Twin",
    "TwinMail",
]
