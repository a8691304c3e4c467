"""`template preview`: a local page with every template and language, on desktop and phone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from importlib import resources

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from pillarbox.api.middleware import HostMiddleware
from pillarbox.api.server import serve_until
from pillarbox.cli import output
from pillarbox.cli.signals import stopping
from pillarbox.errors import PillarboxError, RenderError
from pillarbox.lifecycle.rendering import RenderedMail, Templates
from pillarbox.lifecycle.template_checks import Finding, check, sample_of
from pillarbox.settings import Settings
from pillarbox.sockets import listen, show_address

_DARK = "@media (prefers-color-scheme: dark)"
_STYLE = resources.files(__package__).joinpath("template_preview.css").read_text("utf-8")
# Mails contain their own styles; nothing is loaded, executed or sent.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )
}


async def serve(settings: Settings, host: str, port: int) -> None:
    """Serve the page until a signal."""
    load = partial(Templates, settings.template_dirs, settings.lifecycle_locale)
    load()  # errors of the folders are reported here, not in the browser
    stop = asyncio.Event()
    with listen(host, port, "http") as listener, stopping(stop):
        address = show_address(host, listener.getsockname()[1])
        ready = partial(output.say, f"http://{address}/  (Ctrl-C to stop)")
        await serve_until(
            stop,
            _config(build(load, host)),
            listener,
            ready,
        )


def _config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="none",
        proxy_headers=False,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
    )


def build(load: Callable[[], Templates], host: str) -> Starlette:
    """The pages, for a server that listens on `host`."""

    async def index(request: Request) -> Response:
        return _page("Templates", _index(load()))

    async def one(request: Request) -> Response:
        name = "{portal}/{kind}".format(**request.path_params)
        return _page(name, _one(load(), name, request.path_params["locale"]))

    async def failed(request: Request, error: Exception) -> Response:
        return _page("Templates", f'<p class="wrong">{escape(str(error))}</p>', 422)

    return Starlette(
        routes=[Route("/", index), Route("/{portal}/{kind}/{locale}", one)],
        middleware=[Middleware(HostMiddleware, host=host)],
        exception_handlers={PillarboxError: failed},
    )


def _page(title: str, body: str, status: int = 200) -> Response:
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    html = f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'
    return HTMLResponse(html, status, _HEADERS)


def _index(templates: Templates) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{_languages(templates, name)}</td></tr>"
        for name in templates.names()
    )
    return f"<h1>Templates</h1><table>{rows}</table>" + _findings(check(templates))


def _languages(templates: Templates, name: str, current: str | None = None) -> str:
    links = []
    for locale in templates.locales(name):
        if locale == current:
            links.append(f"<b>{locale}</b>")
        else:
            links.append(f'<a href="/{escape(name)}/{locale}">{locale}</a>')
    return " ".join(links)


def _one(templates: Templates, name: str, locale: str) -> str:
    languages = _languages(templates, name, locale)
    head = f'<p><a href="/">all templates</a></p><h1>{escape(name)} {languages}</h1>'
    found = [finding for finding in check(templates, [name]) if finding.locale in (locale, None)]
    findings = _findings(found)
    try:
        rendered = templates.render(name, locale, sample_of(templates, name))
    except RenderError:
        return head + findings
    return head + findings + _shown(rendered)


def _findings(found: Sequence[Finding]) -> str:
    if not found:
        return '<p class="right">No problems.</p>'
    items = "".join(
        f"<li>{escape(' '.join(str(one) for one in finding if one))}</li>" for finding in found
    )
    return f'<ul class="wrong">{items}</ul>'


def _shown(rendered: RenderedMail) -> str:
    subject = f'<p class="subject">{escape(rendered.subject)}</p>'
    frames = "".join(_frames(rendered.html or "", dark) for dark in (False, True))
    text = f"<h2>Text</h2><pre>{escape(rendered.text or '')}</pre>"
    return f'{subject}<input type="checkbox" id="dark"><label for="dark">dark</label>{frames}{text}'


def _frames(html: str, dark: bool) -> str:
    """A mail in two widths, light or dark independent of the reader's system."""
    scheme, media = "day", "@media not all"
    if dark:
        scheme, media = "night", "@media all"
    shown = escape(html.replace(_DARK, media))
    frames = "".join(
        f'<iframe sandbox class="{kind}" title="{kind}" srcdoc="{shown}"></iframe>'
        for kind in ("desktop", "phone")
    )
    return f'<div class="{scheme}">{frames}</div>'
