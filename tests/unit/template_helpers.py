"""Folders of templates for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pillarbox.errors import RenderError
from pillarbox.lifecycle.rendering import Templates

LINK = "https://accounts.example.com/activate?token=abc&expires=def"
DATA: dict[str, Any] = {
    "account": {"login": "ada", "name": "Ada", "email": "ada@example.com"},
    "link": LINK,
    "code": "00042",
    "expires_minutes": 15,
}


def write(folder: Path, **files: str) -> Path:
    """Write files; `shop__order__en_txt` is shop/order/en.txt."""
    for name, text in files.items():
        parts = name.split("__")
        path = folder.joinpath(*parts[:-1], ".".join(parts[-1].rsplit("_", 1)).replace("_", "-"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def one(
    folder: Path, html: str = "", text: str = "text", subject: str = "Subject", **files: str
) -> Templates:
    """A folder with one template, shop/order, in English."""
    parts = {
        "shop__order__en_html": html,
        "shop__order__en_txt": text,
        "shop__order__en_subject": subject,
    }
    return Templates([write(folder, **parts, **files)])


def failure(templates: Templates, data: dict[str, Any] | None = None) -> RenderError:
    """What is said when that template is rendered."""
    with pytest.raises(RenderError) as raised:
        templates.render("shop/order", "en", DATA if data is None else data)
    return raised.value
