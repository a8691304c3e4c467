"""Renders templates: the subject, text and HTML of a mail, in its language and portal's colours."""

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
# Characters of one part: the limit of `enqueue` in bytes; a longer result is a mistake.
MAX_CHARACTERS = 2**20
# Missing languages that are logged, once each: applications may send any text as a language.
MAX_REPORTED = 100
# Line ends, other control characters and direction marks: a name must not become or hide a header.
_control = re.compile("[\x00-\x20\x7f-\xa0\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


class RenderedMail(NamedTuple):
    """The texts of a mail. A template may lack one of text and HTML."""

    subject: str
    text: str | None
    html: str | None
    locale: str  # the language of the texts


class _CompiledTemplate(NamedTuple):
    """A template in one language."""

    locale: str
    sandbox: TemplateSandbox
    known: Mapping[str, Any]  # the portal and the language
    parts: Mapping[str, Template]


class Templates:
    """All templates: those of the given folders before those of the package.

    Files are read now and by `refresh`; a template is compiled on first use.
    """

    def __init__(
        self,
        folders: Sequence[Path] = (),
        default: str = "en",
        count_fallback: Callable[[], None] = lambda: None,
    ) -> None:
        self._own_folders = list(folders)
        self.default = default
        self._count_fallback = count_fallback
        self._reported: set[tuple[str, str]] = set()
        self._reset(self._read_files())

    def _read_files(self) -> TemplateFiles:
        return TemplateFiles([*self._own_folders, PACKAGE])

    def _reset(self, files: TemplateFiles) -> None:
        self.files = files
        self._portals: dict[str, Portal] = {}
        self._sandboxes: dict[tuple[str, str], TemplateSandbox] = {}
        self._compiled: dict[tuple[str, str], _CompiledTemplate] = {}

    def refresh(self) -> bool:
        """Read the files again; whether one changed. If that fails, the old ones stay."""
        try:
            files = self._read_files()
        except SettingsError as error:
            log.warning("templates cannot be read again; the old ones stay", error=str(error))
            return False
        if files.files == self.files.files:
            return False
        self._reset(files)
        return True

    def names(self) -> list[str]:
        """The names of all templates, such as `hub/welcome`."""
        return list(self.files.templates)

    def locales(self, name: str) -> list[str]:
        """The languages of a template; RenderError if it does not exist."""
        return sorted(self._languages(name))

    def portal(self, key: str) -> Portal:
        """A portal by its portal.toml, with defaults without one; RenderError if it is wrong."""
        portal = self._portals.get(key)
        if portal is None:
            portal = self._read_portal(key)
            self._portals[key] = portal
        return portal

    def render(
        self,
        name: str,
        locale: str | None,
        data: Mapping[str, Any],
    ) -> RenderedMail:
        """Render a template; RenderError says what is wrong, and where.

        `portal` and `locale` in the data are ignored.
        """
        requested = locale or self.default
        template = self._compiled.get((name, requested)) or self._prepare(name, requested)
        values = {**data, **template.known}
        subject = _render_part(
            name,
            "subject",
            template,
            values,
        )
        text = None
        if "text" in template.parts:
            text = _render_part(
                name,
                "text",
                template,
                values,
            )
        html = None
        if "html" in template.parts:
            html = _render_part(
                name,
                "html",
                template,
                values,
            )
        return RenderedMail(
            _control.sub(" ", subject).strip(),
            text,
            html,
            template.locale,
        )

    def variables(self, name: str, locale: str) -> dict[str, dict[str, int]]:
        """The variables that each part uses, with the line of the first use."""
        template = self._prepare(name, locale)
        variables = {}
        for part in template.parts:
            file = f"{name}/{template.locale}{PARTS[part]}"
            variables[part] = template.sandbox.variables(file)
        return variables

    def _languages(self, name: str) -> Mapping[str, set[str]]:
        try:
            return self.files.templates[name]
        except KeyError:
            problem = f"there is no such template {self._searched_folders()}"
            raise RenderError(name[:100], problem) from None

    def _searched_folders(self) -> str:
        if not self._own_folders:
            return (
                "among those that come with Pillarbox;"
                " the setting template_dirs names no folder of your own"
            )
        folders = ", ".join(str(folder.resolve()) for folder in self._own_folders)
        return f"in {folders}, nor among those that come with Pillarbox"

    def _prepare(self, name: str, requested: str) -> _CompiledTemplate:
        """The template in the best language, compiled."""
        offered = self._languages(name)
        locale = nearest(requested, self.default, offered)
        if locale is None:
            raise RenderError(
                name, f"it exists neither in {requested[:40]!r} nor in {self.default!r}"
            )
        if _primary_language(locale) != _primary_language(requested):
            self._report_fallback(name, requested)
        template = self._compiled.get((name, locale))
        if template is None:
            template = self._compile(name, locale, offered[locale])
            self._compiled[name, locale] = template
        return template

    def _report_fallback(self, name: str, requested: str) -> None:
        """Count each mail in another language than requested, and log each case once."""
        self._count_fallback()
        if (name, requested) not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add((name, requested))
            log.warning(
                "a template is missing in a language",
                template=name,
                locale=requested[:40],
                used=self.default,
            )

    def _compile(
        self,
        name: str,
        locale: str,
        parts: set[str],
    ) -> _CompiledTemplate:
        if "subject" not in parts:
            raise RenderError(name, f"there is no {locale}.subject", part="subject")
        sandbox = self._sandbox(name.partition("/")[0], locale)
        compiled = {
            part: _compile_part(
                sandbox,
                name,
                locale,
                part,
            )
            for part in parts
        }
        return _CompiledTemplate(
            locale,
            sandbox,
            sandbox.known,
            compiled,
        )

    def _sandbox(self, key: str, locale: str) -> TemplateSandbox:
        """The environment of a portal's templates in one language, with its constants."""
        sandbox = self._sandboxes.get((key, locale))
        if sandbox is None:
            style = self.style(key)
            portal = self.portal(key).seen_in(locale, self.default)
            known = {"portal": portal, "locale": locale}
            sandbox = TemplateSandbox(lambda name: self._source(name, style), known)
            self._sandboxes[key, locale] = sandbox
        return sandbox

    def style(self, key: str) -> css_inlining.StyleSheet:
        """The style sheet of a portal: the common one, then its own."""
        variables = self.portal(key).css_variables()
        classes: dict[str, str] = {}
        media = list[str]()
        for sheet in (f"{LAYOUT}/style.css", f"{key}/style.css"):
            if sheet not in self.files.files:
                continue
            style = self._parse_sheet(sheet, variables)
            media.append(style.media)
            for name, declarations in style.classes.items():
                if name in classes:
                    declarations = f"{classes[name]} {declarations}"
                classes[name] = declarations
        return css_inlining.StyleSheet(classes, " ".join(media))

    def _parse_sheet(self, sheet: str, variables: Mapping[str, str]) -> css_inlining.StyleSheet:
        try:
            return css_inlining.parse(self.files.files[sheet].text, variables)
        except css_inlining.InliningError as error:
            raise RenderError(
                sheet,
                str(error),
                part="css",
                line=error.line,
            ) from None

    def _source(self, name: str, style: css_inlining.StyleSheet) -> str | None:
        text = self.files.text(name)
        if text is None or not name.endswith(".html"):
            return text
        try:
            return css_inlining.inline(text, style)
        except css_inlining.InliningError as error:
            raise TemplateSyntaxError(str(error), error.line or 1, name) from None

    def _read_portal(self, key: str) -> Portal:
        file = f"{key}/portal.toml"
        text = self.files.text(file) or ""
        try:
            return read_portal(key, text)
        except PortalError as error:
            raise RenderError(file, str(error)) from None


def _primary_language(locale: str) -> str:
    return locale.replace("_", "-").partition("-")[0].lower()


def _compile_part(
    sandbox: TemplateSandbox,
    name: str,
    locale: str,
    part: str,
) -> Template:
    try:
        return sandbox.get_template(f"{name}/{locale}{PARTS[part]}")
    except Exception as error:
        raise _render_error(
            error,
            name,
            part,
            {},
        ) from None


def _render_part(
    name: str,
    part: str,
    compiled: _CompiledTemplate,
    values: dict[str, Any],
) -> str:
    """One part of a mail."""
    template = compiled.parts[part]
    compiled.sandbox.steps = 0
    try:
        pieces: list[str] = []
        size = 0
        for piece in template.root_render_func(template.new_context(values, shared=True)):
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise TemplateRefused(f"the result is longer than {MAX_CHARACTERS} characters")
            pieces.append(piece)
        return "".join(pieces)
    except Exception as error:
        raise _render_error(
            error,
            name,
            part,
            values,
        ) from None


def _render_error(
    error: Exception,
    name: str,
    part: str,
    values: Mapping[str, Any],
) -> RenderError:
    """What went wrong and where, without any value: mails are private."""
    if isinstance(error, TemplateSyntaxError):
        return _syntax_error(error, name, part)
    variable = None
    match error:
        case MissingVariable():
            variable = _path(error, values)
            message = f"there is no variable {variable}"
        case TemplateRefused():
            message = str(error)
        case TemplateError():
            message = _jinja_message(error)
        case RecursionError():
            message = "macros call each other without end"
        case _:
            message = f"a value has the wrong type for an operation ({type(error).__name__})"
    line = _line(error.__traceback__, name)
    return RenderError(
        name,
        message,
        part=part,
        line=line,
        variable=variable,
    )


def _syntax_error(
    error: TemplateSyntaxError,
    name: str,
    part: str,
) -> RenderError:
    """A syntax error; one in another file names that file and its line."""
    if (error.name or "").startswith(f"{name}/"):
        return RenderError(
            name,
            str(error.message),
            part=part,
            line=error.lineno,
        )
    message = f"{error.message} ({error.name}, line {error.lineno})"
    return RenderError(name, message, part=part)


def _jinja_message(error: TemplateError) -> str:
    """Jinja's message if it is only about names in the template."""
    message = error.message or ""
    if message.startswith(("No filter named", "No test named")):
        return message
    return "it uses something that templates may not use"


def _path(error: MissingVariable, values: Mapping[str, Any]) -> str:
    """The whole name of a missing variable, such as account.nmae."""
    for key, value in values.items():
        if value is error.obj and value is not None:
            return f"{key}.{error.name}"
    return error.name


def _line(trace: TracebackType | None, name: str) -> int | None:
    """The line in the template's own file, also if the error is in a macro that it calls."""
    line = None
    while trace is not None:
        frame = trace.tb_frame
        template = frame.f_globals.get("__jinja_template__")
        # Jinja calls such a function for a filter that does not exist.
        is_stub = frame.f_code.co_name.startswith("t_")
        if template is not None and not is_stub and (template.name or "").startswith(f"{name}/"):
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line
