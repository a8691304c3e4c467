"""Extracts the readable parts of a mail: main headers and text; HTML becomes text with links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from html.parser import HTMLParser

# Elements that begin a line.
BLOCKS = frozenset({
    "address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "figure", "footer", "h1",
    "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "ol", "p", "pre", "section",
    "table", "tr", "ul",
})  # fmt: skip
PARAGRAPHS = frozenset({"blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "table", "ul"})
# Elements whose content is not shown.
HIDDEN = frozenset({"head", "script", "style", "template", "title"})


@dataclass(frozen=True, slots=True)
class ReadableMail:
    """The decoded parts of a mail; empty if it has none."""

    sender: str
    to: str
    cc: str
    date: str
    subject: str
    text: str
    attachments: Sequence[str]


def readable(content: bytes) -> ReadableMail:
    """Decode a mail's text and main headers; illegal bytes are replaced."""
    mail = BytesParser(EmailMessage, policy=policy.default).parsebytes(content)
    return ReadableMail(
        sender=_header(mail, "from"),
        to=_header(mail, "to"),
        cc=_header(mail, "cc"),
        date=_header(mail, "date"),
        subject=_header(mail, "subject"),
        text=_text(mail),
        attachments=_attachments(mail),
    )


def _header(mail: EmailMessage, name: str) -> str:
    try:
        return str(mail.get(name, ""))
    except Exception:  # the standard library's parser fails for some hostile headers
        return ""


def _text(mail: EmailMessage) -> str:
    for kind in ("plain", "html"):
        try:
            body = mail.get_body((kind,))
            if isinstance(body, EmailMessage):
                content = str(body.get_content())
                if kind == "html":
                    content = text_of_html(content)
                return content
        except (LookupError, ValueError):  # an unknown character set, or a malformed part
            continue
    return ""


def _attachments(mail: EmailMessage) -> list[str]:
    return [part.get_filename() or part.get_content_type() for part in mail.iter_attachments()]


def text_of_html(html: str) -> str:
    """The text that HTML shows, with the URL of each link after its text."""
    reader = _HtmlText()
    reader.feed(html)
    reader.close()
    lines = [
        re.sub(r"[ \t\r\f\v]+", " ", line).strip() for line in "".join(reader.parts).split("\n")
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


class _HtmlText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0
        # The URL of each open link, and the index at which its text begins.
        self._links: list[tuple[str, int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in HIDDEN:
            self._hidden += 1
        if self._hidden:
            return
        values = dict(attrs)
        self._break(tag)
        if tag == "li":
            self.parts.append("- ")
        elif tag == "a":
            self._links.append((values.get("href") or "", len(self.parts)))
        elif tag == "img":
            self.parts.append(values.get("alt") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in HIDDEN:
            self._hidden = max(self._hidden - 1, 0)
        elif not self._hidden:
            if tag == "a" and self._links:
                self._end_link(*self._links.pop())
            elif tag in ("td", "th"):
                self.parts.append(" ")
            self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))

    def _break(self, tag: str) -> None:
        if tag in PARAGRAPHS:
            self.parts.append("\n\n")
        elif tag in BLOCKS:
            self.parts.append("\n")

    def _end_link(self, address: str, begin: int) -> None:
        words = "".join(self.parts[begin:]).strip()
        if not address or address.startswith("#") or words == address:
            return
        if words:
            self.parts.append(" ")
        self.parts.append(f"<{address}>")
