"""For tests: SMTP servers with faults, a fast sink, provider twins, temporary certificates."""

from pillarbox.testing.smtp import Extensions, Faults, ReceivedMail, SmtpServer

__all__ = ["Extensions", "Faults", "ReceivedMail", "SmtpServer"]
