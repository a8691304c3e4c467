"""`template preview`: a local page with every template and language, as a desktop, a phone and the dark show it."""

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
# The mails bring styles of their own; nothing is fetched, nothing runs, nothing is sent.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
}


async def serve(settings: Settings, host: str, port: int) -> None:
    """Serve the page until the process is told to stop."""
    load = partial(Templates, settings.template_dirs, settings.lifecycle_locale)
    load()  # what is wrong with the folders is said here, not in the browser
    stop = asyncio.Event()
    with listen(host, port, "http") as listener, stopping(stop):
        told = f"http://{show_address(host, listener.getsockname()[1])}/  (Ctrl-C to stop)"
        await serve_until(stop, _config(build(load, host)), listener, partial(output.say, told))


def _config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app, ws="none", proxy_headers=False, log_config=None, log_level=logging.WARNING, access_log=False,
        lifespan="off", server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip


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
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    text = f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>'
    return HTMLResponse(text, status, _HEADERS)


def _index(templates: Templates) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{_languages(templates, name)}</td></tr>"
        for name in templates.names()
    )
    return f"<h1>Templates</h1><table>{rows}</table>" + _findings(check(templates))


def _languages(templates: Templates, name: str, current: str | None = None) -> str:
    return " ".join(
        f"<b>{locale}</b>"
        if locale == current
        else f'<a href="/{escape(name)}/{locale}">{locale}</a>'
        for locale in templates.locales(name)
    )


def _one(templates: Templates, name: str, locale: str) -> str:
    head = f'<p><a href="/">all templates</a></p><h1>{escape(name)} {_languages(templates, name, locale)}</h1>'
    findings = _findings([one for one in check(templates, [name]) if one.locale in (locale, None)])
    try:
        rendered = templates.render(name, locale, sample_of(templates, name))
    except RenderError:
        return head + findings
    return head + findings + _shown(rendered)


def _findings(found: Sequence[Finding]) -> str:
    if not found:
        return '<p class="right">Nothing is wrong.</p>'
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
    """A mail in two widths. Which colours it takes is settled here, not by the reader's system."""
    shown = escape(html.replace(_DARK, "@media all" if dark else "@media not all"))
    frames = "".join(
        f'<iframe sandbox class="{kind}" title="{kind}" srcdoc="{shown}"></iframe>'
        for kind in ("desktop", "phone")
    )
    return f'<div class="{"night" if dark else "day"}">{frames}</div>'
