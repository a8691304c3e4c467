"""Settings and replies of SMTP submission: what contradicts, what is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pillarbox.accept.smtp import commands, content, refusals, replies, submission
from pillarbox.accept.smtp.rules import SessionLimits
from pillarbox.accept.smtp.server import SmtpConnectionLimits, Timeouts
from pillarbox.accept.smtp.service import connection_limits_of, limits_of, timeouts_of
from pillarbox.errors import SettingsError
from pillarbox.settings import SPECS, load

REFERENCE = (Path(__file__).parents[2] / "docs/reference/smtp.md").read_text("utf-8")
# Those of the provider that mails leave through.
OUTGOING = {"smtp_host", "smtp_port", "smtp_from_address", "smtp_from_name"}


def test_defaults_are_those_of_the_rules() -> None:
    settings = load({})
    assert settings.smtp_addresses == {}
    assert (limits_of(settings), timeouts_of(settings), connection_limits_of(settings)) == (
        SessionLimits(),
        Timeouts(),
        SmtpConnectionLimits(),
    )


def test_addresses() -> None:
    given = {
        "smtp": "OFF",
        "smtp_tls": "[::1]:465",
        "smtp_submission": "0.0.0.0:587",
        "smtp_certificate": "x.pem",
    }
    assert load({}, overrides=given).smtp_addresses == {
        "smtp_submission": ("0.0.0.0", 587),
        "smtp_tls": ("::1", 465),
    }
    assert load({}, overrides={"smtp": "127.0.0.1:0"}).smtp_addresses == {"smtp": ("127.0.0.1", 0)}


@pytest.mark.parametrize("name", ["smtp_submission", "smtp_tls"])
def test_a_listener_for_logins_needs_a_certificate(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is set, but not smtp_certificate"):
        load({}, overrides={name: "127.0.0.1:0"})


@pytest.mark.parametrize(
    "name", sorted(name for name in SPECS if name.startswith("smtp") and name not in OUTGOING)
)
def test_every_setting_stands_in_the_reference(name: str) -> None:
    assert f"`{name}`" in REFERENCE or name == "smtp_hostname"


def test_every_refusal_stands_in_the_reference() -> None:
    sources = [
        Path(module.__file__).read_text("utf-8")
        for module in (commands, content, refusals, replies, submission)
    ]
    refused = set(re.findall(r'reply\(([45]\d\d), "([45]\.\d+\.\d+)"', "\n".join(sources)))
    assert refused
    documented = re.findall(r"^\| `(\d{3})(?: (\d\.\d+\.\d+))?` \|", REFERENCE, re.MULTILINE)
    assert {(code, status) for code, status in refused if (code, status) not in documented} <= {
        (code, status) for code, status in refused if (code, "") in documented
    }
