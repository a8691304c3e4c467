"""Where templates run: they read values, loop over them and call macros, and can do nothing else.

Jinja's sandbox refuses what is known to be dangerous; this one allows what mails need. Values have
no methods and no attributes, only items; nothing but macros can be called; the list of filters is
short; every loop and call is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import MethodType
from typing import Any

from jinja2 import BaseLoader, StrictUndefined, TemplateSyntaxError, UndefinedError, nodes
from jinja2.environment import TemplateModule
from jinja2.filters import FILTERS
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS

from pillarbox.lifecycle.constant_folding import fold, made_in
from pillarbox.lifecycle.portals import WEB

# Rounds of loops and calls of macros in one part: a long list in a mail has hundreds, a mistake has
# no end.
MOST_STEPS = 5_000
# No `safe`, `attr`, `format`, `center`, `replace` …: they let HTML through, reach attributes, or
# make much of little.
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "e", "escape", "first", "float", "int", "items", "join", "last",
    "length", "list", "lower", "reverse", "round", "sort", "string", "sum", "title", "trim", "truncate", "unique",
    "upper", "urlencode",
)  # fmt: skip
_TESTS = (
    "boolean", "defined", "divisibleby", "eq", "even", "false", "float", "ge", "gt", "in", "integer", "iterable", "le",
    "lt", "mapping", "ne", "none", "number", "odd", "sequence", "string", "true", "undefined",
    "==", "!=", ">", ">=", "<", "<=",
)  # fmt: skip
# Plain directives only: a width such as %999999999d would fill the memory.
_time_format = re.compile(r"(?:[^%]|%-?[A-Za-z%])*").fullmatch
_BY_NAME = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)
_FORBIDDEN = (nodes.EvalContextModifier, nodes.ScopedEvalContextModifier)


class TemplateRefused(Exception):
    """A template does what it may not; the text says what, and holds no value."""


class MissingVariable(UndefinedError):
    """A template uses what is not there; `name` of `obj`, if it is part of something."""

    def __init__(self, name: object, obj: object) -> None:
        super().__init__(f"there is no {name}")
        self.name = str(name)
        self.obj = obj


class MissingValue(StrictUndefined):
    """What stands for a variable that is not there, until it is used."""

    __slots__ = ()

    def __init__(
        self, hint: str | None = None, obj: Any = None, name: str | None = None, exc: Any = None
    ) -> None:
        super().__init__(hint, obj, name, lambda _: MissingVariable(name, obj))  # type: ignore[arg-type]  # is called


def web(value: Any) -> Any:
    """A filter: an address that may stand in a link."""
    if isinstance(value, Undefined):
        str(value)
    if not (isinstance(value, str) and value.startswith(WEB)):
        raise TemplateRefused("a link must begin with https://, http:// or mailto:")
    return value


def time(value: Any, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    """A filter: a moment in UTC, in the way that `form` says."""
    if not _time_format(form):
        raise TemplateRefused(
            "the form of a time has plain directives only, such as %d.%m.%Y %H:%M"
        )
    if isinstance(value, Undefined):
        str(value)
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise TemplateRefused("this is no time")
    return moment.astimezone(UTC).strftime(form)


def shown(value: Any) -> Any:
    """What is printed: nothing is not, for nobody wants to read `None`."""
    if value is None:
        raise TemplateRefused(
            'a value is null: write what is to be shown instead, as in {{ name or "…" }}'
        )
    return value


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment for the templates of one portal in one language: `known` are its constants."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, source: Callable[[str], str | None], known: Mapping[str, Any]) -> None:
        super().__init__(
            loader=_Loader(source), undefined=MissingValue, finalize=shown, autoescape=is_html, auto_reload=False,
            cache_size=-1, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self.globals.clear()
        self.filters = {name: FILTERS[name] for name in _FILTERS} | {
            "web": web,
            "time": time,
            "counted": self._counted,
        }
        self.tests = {name: TESTS[name] for name in _TESTS}
        self.steps = 0
        self.known = known

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """As Jinja does; then loops are counted, and what could only be a mistake is refused."""
        tree = fold(super()._parse(source, name, filename), self.known)
        for modifier in tree.find_all(_FORBIDDEN):
            raise TemplateSyntaxError("escaping cannot be changed here", modifier.lineno, name)
        for node in tree.find_all(_BY_NAME):
            if not isinstance(getattr(node, "template"), nodes.Const):  # noqa: B009 -- all four have one
                raise TemplateSyntaxError(
                    "the name of another template must be written out", node.lineno, name
                )
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
        return tree

    def variables(self, name: str) -> dict[str, int]:
        """The variables that a file asks for, and in which line first; those that are known are none."""
        tree = self.parse(self.loader.get_source(self, name)[0], name)  # type: ignore[union-attr]  # there is a loader
        # What a file imports, Jinja counts as unknown in its blocks.
        wanted = find_undeclared_variables(tree) - self.known.keys() - set(made_in(tree))
        found: dict[str, int] = {}
        for one in tree.find_all(nodes.Name):
            if one.name in wanted:
                found.setdefault(one.name, one.lineno)
        return found

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _step(self) -> None:
        # One number for all threads: it bounds what a mistake costs, and need not be exact.
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TemplateRefused(f"it takes more than {MOST_STEPS} rounds and calls")

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute in obj:
                return obj[attribute]
        elif kind is TemplateModule:
            if attribute in vars(obj) and attribute[0] != "_":
                return vars(obj)[attribute]
        elif kind is LoopContext or kind is TemplateReference:
            return super().getattr(
                obj, attribute
            )  # Jinja's own sandbox knows which of them are harmless
        elif isinstance(obj, Undefined):
            str(obj)  # raises, and names what is really missing
        return MissingValue(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            str(obj)
        if isinstance(obj, dict | list | tuple | str):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        return MissingValue(obj=obj, name="[…]")  # what was looked for is a value, and not told

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self._step()
        if type(__obj) is Macro:
            kwargs.pop("_block_vars", None)
            kwargs.pop("_loop_vars", None)
            return __obj(*args, **kwargs)
        if isinstance(__obj, Undefined):
            str(__obj)
        if not _is_callable(__obj):
            raise TemplateRefused("only macros can be called: use a filter instead of a method")
        return __context.call(__obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not (
            isinstance(left, int | float) and isinstance(right, int | float)
        ):
            raise TemplateRefused(
                f"{operator} is for numbers" if operator != "**" else "there is no **"
            )
        return super().call_binop(context, operator, left, right)


def _is_callable(obj: Any) -> bool:
    return isinstance(obj, BlockReference | LoopContext) or (
        isinstance(obj, MethodType) and isinstance(obj.__self__, LoopContext)
    )


def is_html(name: str | None) -> bool:
    """Whether values are escaped in a template; without a name they are."""
    return name is None or name.endswith(".html")


class _Loader(BaseLoader):
    """Gives the files that were found when templates were loaded, by their names, and no others."""

    def __init__(self, source: Callable[[str], str | None]) -> None:
        self._source = source

    def get_source(self, environment: Any, template: str) -> tuple[str, str | None, None]:
        source = self._source(template)
        if source is None:
            raise TemplateSyntaxError(f"there is no {template}", 1, template)
        return source, template, None
