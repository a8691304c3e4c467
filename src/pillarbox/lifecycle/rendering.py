"""Templates: files become the subject, text and HTML of a mail, in the reader's language and the portal's colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.environment import Template

from pillarbox.errors import RenderError, SettingsError
from pillarbox.lifecycle import css_inlining
from pillarbox.lifecycle.portals import Portal, PortalError, nearest, read_portal
from pillarbox.lifecycle.template_files import LAYOUT, PACKAGE, PARTS, TemplateFiles
from pillarbox.lifecycle.template_sandbox import MissingVariable, TemplateRefused, TemplateSandbox
from pillarbox.telemetry import logs

log = logs.get("pillarbox.templates")
# Characters of one part: what `enqueue` takes as octets; a template that makes more has lost its
# way.
MOST_CHARACTERS = 2**20
# Languages reported as missing, once each: they come from applications, which may say anything.
MOST_REPORTED = 100
# Line ends, other controls and marks that turn the direction of writing: a name must not become a
# header, or hide one.
_control = re.compile("[\x00-\x20\x7f-\xa0\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


class RenderedMail(NamedTuple):
    """A mail in words. A template may lack one of text and HTML."""

    subject: str
    text: str | None
    html: str | None
    locale: str  # the language it is in


class _CompiledTemplate(NamedTuple):
    """A template in one language, ready to be filled."""

    locale: str
    sandbox: TemplateSandbox
    known: Mapping[str, Any]  # the portal and the language
    parts: Mapping[str, Template]


class Templates:
    """All templates: those of the given folders, before those that come with Pillarbox.

    Files are read now, and when `refresh` is called; each template is compiled when it is first
    used.
    """

    def __init__(
        self,
        folders: Sequence[Path] = (),
        default: str = "en",
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        self._folders = [*folders, PACKAGE]
        self.default = default
        self._missed = missed
        self._reported: set[tuple[str, str]] = set()
        self._begin(TemplateFiles(self._folders))

    def _begin(self, sources: TemplateFiles) -> None:
        self.sources = sources
        self._portals: dict[str, Portal] = {}
        self._sandboxes: dict[tuple[str, str], TemplateSandbox] = {}
        self._ready: dict[tuple[str, str], _CompiledTemplate] = {}

    def refresh(self) -> bool:
        """Read the files anew, and say whether one changed. While they cannot be read, all stays as it was."""
        try:
            sources = TemplateFiles(self._folders)
        except SettingsError as error:
            log.warning("templates cannot be read anew; the old ones count", error=str(error))
            return False
        if sources.files == self.sources.files:
            return False
        self._begin(sources)
        return True

    def names(self) -> list[str]:
        """The templates there are, such as `hub/welcome`."""
        return list(self.sources.templates)

    def locales(self, name: str) -> list[str]:
        """The languages that a template has; RenderError if there is no such template."""
        return sorted(self._languages(name))

    def portal(self, key: str) -> Portal:
        """A portal: its own portal.toml, or plain looks without one; RenderError if that is wrong."""
        found = self._portals.get(key)
        if found is None:
            found = self._portals[key] = self._read_portal(key)
        return found

    def render(self, name: str, locale: str | None, data: Mapping[str, Any]) -> RenderedMail:
        """Fill a template; RenderError says what is missing, and where. `portal` and `locale` are never the data's."""
        asked = locale or self.default
        ready = self._ready.get((name, asked)) or self._prepare(name, asked)
        values = {**data, **ready.known}
        subject = _control.sub(" ", _fill(name, "subject", ready, values)).strip()
        text = _fill(name, "text", ready, values) if "text" in ready.parts else None
        html = _fill(name, "html", ready, values) if "html" in ready.parts else None
        return RenderedMail(subject, text, html, ready.locale)

    def variables(self, name: str, locale: str) -> dict[str, dict[str, int]]:
        """What each part of a template asks the data for, and in which line first."""
        ready = self._prepare(name, locale)
        return {
            part: ready.sandbox.variables(f"{name}/{ready.locale}{PARTS[part]}")
            for part in ready.parts
        }

    def _languages(self, name: str) -> Mapping[str, set[str]]:
        try:
            return self.sources.templates[name]
        except KeyError:
            raise RenderError(
                name[:100], f"there is no such template {self._looked_in()}"
            ) from None

    def _looked_in(self) -> str:
        """Where templates were looked for, as an error says it."""
        *own, _ = self._folders
        if not own:
            return "among those that come with Pillarbox; the setting template_dirs names no folder of your own"
        return f"in {', '.join(str(one.resolve()) for one in own)}, nor among those that come with Pillarbox"

    def _prepare(self, name: str, asked: str) -> _CompiledTemplate:
        """Find the language that fits best, and compile the template in it."""
        offered = self._languages(name)
        locale = nearest(asked, self.default, offered)
        if locale is None:
            raise RenderError(name, f"there is neither {asked[:40]!r} nor {self.default!r} of it")
        if locale.partition("-")[0].lower() != asked.replace("_", "-").partition("-")[0].lower():
            self._report(name, asked)
        if (name, locale) not in self._ready:
            self._ready[name, locale] = self._compile(name, locale, offered[locale])
        return self._ready[name, locale]

    def _report(self, name: str, asked: str) -> None:
        """Count each mail in another language than was asked for, and say so once."""
        self._missed()
        if (name, asked) not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add((name, asked))
            log.warning(
                "a template is missing in a language",
                template=name,
                locale=asked[:40],
                used=self.default,
            )

    def _compile(self, name: str, locale: str, parts: set[str]) -> _CompiledTemplate:
        if "subject" not in parts:
            raise RenderError(name, f"there is no {locale}.subject", part="subject")
        sandbox = self._sandbox(name.partition("/")[0], locale)
        compiled = {part: self._compiled(sandbox, name, locale, part) for part in parts}
        return _CompiledTemplate(locale, sandbox, sandbox.known, compiled)

    def _compiled(self, sandbox: TemplateSandbox, name: str, locale: str, part: str) -> Template:
        try:
            return sandbox.get_template(f"{name}/{locale}{PARTS[part]}")
        except Exception as error:
            raise _explained(error, name, part, {}) from None

    def _sandbox(self, key: str, locale: str) -> TemplateSandbox:
        """Where a portal's templates run: its colours are part of every style, its words of every foot."""
        found = self._sandboxes.get((key, locale))
        if found is None:
            style = self.style(key)
            known = {"portal": self.portal(key).seen_in(locale, self.default), "locale": locale}
            found = self._sandboxes[key, locale] = TemplateSandbox(
                lambda name: self._source(name, style), known
            )
        return found

    def style(self, key: str) -> css_inlining.StyleSheet:
        """The style sheet of a portal: the common one, then its own."""
        sheets = (f"{LAYOUT}/style.css", f"{key}/style.css")
        variables = self.portal(key).css_variables()
        styles = [self._parsed_sheet(one, variables) for one in sheets if one in self.sources.files]
        classes: dict[str, str] = {}
        for style in styles:
            for name, said in style.classes.items():
                classes[name] = f"{classes[name]} {said}" if name in classes else said
        return css_inlining.StyleSheet(classes, " ".join(style.media for style in styles))

    def _parsed_sheet(self, sheet: str, variables: Mapping[str, str]) -> css_inlining.StyleSheet:
        try:
            return css_inlining.parse(self.sources.files[sheet].text, variables)
        except css_inlining.InliningError as error:
            raise RenderError(sheet, str(error), part="css", line=error.line) from None

    def _source(self, name: str, style: css_inlining.StyleSheet) -> str | None:
        text = self.sources.text(name)
        if text is None or not name.endswith(".html"):
            return text
        try:
            return css_inlining.inline(text, style)
        except css_inlining.InliningError as error:
            raise TemplateSyntaxError(str(error), error.line or 1, name) from None

    def _read_portal(self, key: str) -> Portal:
        file = f"{key}/portal.toml"
        text = self.sources.text(file)
        try:
            return read_portal(key, text or "")
        except PortalError as error:
            raise RenderError(file, str(error)) from None


def _fill(name: str, part: str, ready: _CompiledTemplate, values: dict[str, Any]) -> str:
    """One part of a mail."""
    template = ready.parts[part]
    ready.sandbox.steps = 0
    try:
        pieces: list[str] = []
        size = 0
        for piece in template.root_render_func(template.new_context(values, shared=True)):
            size += len(piece)
            if size > MOST_CHARACTERS:
                raise TemplateRefused(f"it becomes longer than {MOST_CHARACTERS} characters")
            pieces.append(piece)
        return "".join(pieces)
    except Exception as error:
        raise _explained(error, name, part, values) from None


def _explained(error: Exception, name: str, part: str, values: Mapping[str, Any]) -> RenderError:
    """What went wrong and where, without any value: what is in mails is nobody's business but the reader's."""
    variable = None
    match error:
        case MissingVariable():
            variable = _path(error, values)
            message = f"there is no variable {variable}"
        case TemplateRefused():
            message = str(error)
        case TemplateSyntaxError():
            place = (
                ""
                if (error.name or "").startswith(f"{name}/")
                else f" ({error.name}, line {error.lineno})"
            )
            line = None if place else error.lineno
            return RenderError(name, f"{error.message}{place}", part=part, line=line)
        case TemplateError():
            message = _words(error)
        case RecursionError():
            message = "macros call each other without end"
        case _:
            message = f"a value does not fit what is done with it ({type(error).__name__})"
    return RenderError(
        name, message, part=part, line=_line(error.__traceback__, name), variable=variable
    )


def _words(error: TemplateError) -> str:
    """What Jinja says, where that is only about names in the template."""
    text = error.message or ""
    return (
        text
        if text.startswith(("No filter named", "No test named"))
        else "it does what templates may not"
    )


def _path(error: MissingVariable, values: Mapping[str, Any]) -> str:
    """The whole name of what is missing, such as account.nmae."""
    owners = [key for key, value in values.items() if value is error.obj and value is not None]
    return f"{owners[0]}.{error.name}" if owners else error.name


def _line(trace: TracebackType | None, name: str) -> int | None:
    """The line of the template's own file in which it happened, though it was in a macro that the line calls."""
    line = None
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        inner = trace.tb_frame.f_code.co_name.startswith(
            "t_"
        )  # how Jinja fails for a filter that does not exist
        if template is not None and not inner and (template.name or "").startswith(f"{name}/"):
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line
