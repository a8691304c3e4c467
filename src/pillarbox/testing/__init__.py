"""What we give users' tests too: SMTP servers with faults, a fast sink, provider twins, throw-away certificates."""

from pillarbox.testing.smtp import Extensions, Faults, ReceivedMail, SmtpServer

__all__ = ["Extensions", "Faults", "ReceivedMail", "SmtpServer"]
