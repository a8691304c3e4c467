"""URLs of `list_unsubscribe`, and the header fields that a mail must then have."""

from __future__ import annotations

from email import message_from_bytes
from typing import Any

HTTPS, OTHER_HTTPS = "https://shop.example/u?id=7&x=%2C", "https://shop.example/stop"
HTTP, MAILTO = "http://shop.example/u", "mailto:stop@shop.example?subject=7"
LONGEST = f"https://shop.example/{'y' * 974}"  # 997 bytes with its angle brackets
POST = {"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
INJECTION = f"{HTTPS}\r\nBcc: victim@mail.example"
# What is given, with the header fields of the mail.
CASES: list[tuple[Any, dict[str, str]]] = [
    ([HTTPS], {"List-Unsubscribe": f"<{HTTPS}>"} | POST),
    ([MAILTO, HTTPS], {"List-Unsubscribe": f"<{MAILTO}>, <{HTTPS}>"} | POST),
    ([MAILTO], {"List-Unsubscribe": f"<{MAILTO}>"}),
    ([HTTP], {"List-Unsubscribe": f"<{HTTP}>"}),
    ([HTTPS, HTTP], {"List-Unsubscribe": f"<{HTTPS}>, <{HTTP}>"}),
    ([HTTPS, OTHER_HTTPS], {"List-Unsubscribe": f"<{HTTPS}>, <{OTHER_HTTPS}>"}),
    ([LONGEST], {"List-Unsubscribe": f"<{LONGEST}>"} | POST),
    ([], {}),
]


def unsubscribe_fields(mime: bytes) -> dict[str, str]:
    """The fields of a mail that are about unsubscribing, unfolded; each occurs once."""
    fields: dict[str, str] = {}
    for name, value in message_from_bytes(mime).items():
        if name.lower().startswith("list-"):
            assert name not in fields, f"{name} occurs twice"
            fields[name] = value.replace("\r\n", "").replace("\n", "").strip()
    return fields
