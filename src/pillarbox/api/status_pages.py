"""The status pages: rendered here, without scripts or external assets. All values are escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from pillarbox.api.problem_types import TYPES
from pillarbox.store.statistics import STATES, QueueStatistics

if TYPE_CHECKING:
    from pillarbox.store.catalog import CapturedMail

# Seconds between refreshes: the numbers are a few indexed counts, and people read no faster.
REFRESH = 5
STYLE = resources.files(__package__).joinpath("status.css").read_text("utf-8")


def policy(*styles: str, forms: str = "'none'") -> str:
    """Allows a page these style sheets, and to post forms where `forms` says; nothing else."""
    hashes = (
        base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() for style in styles
    )
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; style-src {allowed}; base-uri 'none';"
        f" form-action {forms}; frame-ancestors 'none'"
    )


POLICY = policy(STYLE)


def status(numbers: QueueStatistics, mails: Sequence[CapturedMail] | None) -> str:
    """The start page: numbers of the queue, and the last captured mails if they may be shown."""
    parts = [_cards(numbers), _lately(numbers), _workers(numbers), _providers(numbers)]
    if len(numbers.by_tenant) > 1:
        parts.append(_tenants(numbers))
    if mails:
        link = '<p><a href="/captured">all captured mails</a></p>'
        parts.append(f"<h2>Captured mails</h2>{_mails(mails)}{link}")
    return _page("Pillarbox", "".join(parts), refresh=True)


def captured(mails: Sequence[CapturedMail], more: bool) -> str:
    """The list of captured mails, newest first."""
    body = '<p class="dim">No mail was captured yet.</p>'
    if mails:
        body = _mails(mails)
    if more:
        body += f'<p><a href="/captured?before={mails[-1].id}">older</a></p>'
    return _page("Captured mails", "<h2>Captured mails</h2>" + body)


def database_unavailable() -> str:
    text = "<p>The database is unavailable. This page reloads automatically.</p>"
    return _page("Pillarbox: no database", text, refresh=True)


def operations(description: Mapping[str, Any], prefix: str) -> str:
    """The operations of the API, from its OpenAPI description."""
    rows = [
        (method.upper(), prefix + path, operation["summary"], _scopes(operation))
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    text = (
        f'<p>OpenAPI description: <a href="{prefix}/openapi.json">openapi.json</a>.'
        ' <a href="/problems">Problem types</a>.</p>'
    )
    return _page("Pillarbox: API", "<h2>API</h2>" + _table(("", "path", "", "scopes"), rows) + text)


def _scopes(operation: Mapping[str, Any]) -> str:
    return ", ".join(scope for need in operation["security"] for scope in need["key"]) or "none"


def problems(names: Iterable[str]) -> str:
    """The explanations of problem types."""
    rows = [
        (name, str(TYPES[name].status), TYPES[name].title, TYPES[name].help.replace("`", ""))
        for name in names
    ]
    return _page(
        "Pillarbox: problems", "<h2>Problems</h2>" + _table(("type", "status", "", ""), rows)
    )


def _cards(numbers: QueueStatistics) -> str:
    cards = [
        _card(state, count, state in ("held", "failed") and count > 0)
        for state, count in numbers.by_state.items()
    ]
    return f'<h2>Deliveries</h2><div class="cards">{"".join(cards)}</div>'


def _card(label: str, value: object, bad: bool = False) -> str:
    kind = "card bad" if bad else "card"
    return f'<div class="{kind}"><b>{escape(str(value))}</b>{escape(label)}</div>'


def _lately(numbers: QueueStatistics) -> str:
    oldest = numbers.oldest_due
    cards = [
        _card("sent, last hour", numbers.sent),
        _card("failed, last hour", numbers.failed, numbers.failed > 0),
        _card("per second, last minute", f"{numbers.rate:.1f}"),
        _card("oldest due for", "–" if oldest is None else _span(oldest)),
    ]
    return f'<h2>Lately</h2><div class="cards">{"".join(cards)}</div>'


def _span(seconds: float) -> str:
    """A length of time in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _workers(numbers: QueueStatistics) -> str:
    rows = [
        (
            worker.name,
            f"{worker.started_at:%Y-%m-%d %H:%M} UTC",
            str(worker.holds),
            _lease(worker.lease_left),
        )
        for worker in numbers.workers
    ]
    if not rows:
        return '<h2>Workers</h2><p class="dim">No worker is running: mails wait.</p>'
    return "<h2>Workers</h2>" + _table(("name", "since", "in flight", "lease"), rows)


def _lease(left: float) -> str:
    return f"{left:.0f} s left" if left > 0 else "ran out"


def _providers(numbers: QueueStatistics) -> str:
    rows = [
        (provider.name, provider.kind, "in use" if provider.enabled else "off")
        for provider in numbers.providers
    ]
    if not rows:
        text = "None yet: add one with <code>pillarbox provider add</code>."
        return f'<h2>Providers</h2><p class="dim">{text}</p>'
    return "<h2>Providers</h2>" + _table(("name", "kind", "state"), rows)


def _tenants(numbers: QueueStatistics) -> str:
    rows = [
        (name, *(str(counts[state]) for state in STATES))
        for name, counts in numbers.by_tenant.items()
    ]
    return "<h2>Tenants</h2>" + _table(("tenant", *STATES), rows)


def _mails(mails: Sequence[CapturedMail]) -> str:
    rows = "".join(
        f'<tr><td class="n" data-head="no."><a href="/captured/{mail.id}">{mail.id}</a></td>'
        f'<td data-head="subject">{escape(mail.subject) or "(no subject)"}</td>'
        f'<td data-head="from">{escape(mail.sender)}</td>'
        f'<td data-head="to">{escape(", ".join(mail.recipients))}</td>'
        f'<td class="n" data-head="UTC">{mail.at:%H:%M:%S}</td></tr>'
        for mail in mails
    )
    heads = (
        '<tr><th class="n">no.</th><th>subject</th><th>from</th><th>to</th>'
        '<th class="n">UTC</th></tr>'
    )
    return f"<table>{heads}{rows}</table>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; each cell contains its column name for narrow screens."""
    names = [escape(head) for head in heads]
    head = "".join(f"<th>{name}</th>" for name in names)
    body = ""
    for row in rows:
        cells = zip(names, row, strict=True)
        body += (
            "<tr>"
            + "".join(f'<td data-head="{name}">{escape(cell)}</td>' for name, cell in cells)
            + "</tr>"
        )
    return f"<table><tr>{head}</tr>{body}</table>"


def _page(title: str, body: str, refresh: bool = False) -> str:
    again = f'<meta http-equiv="refresh" content="{REFRESH}">' if refresh else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'{again}<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head>"
        '<body><header><h1><a href="/">Pillarbox</a></h1>'
        '<span><a href="/api/v1/">API</a> <a href="/metrics">metrics</a></span></header>'
        f"{body}</body></html>"
    )
