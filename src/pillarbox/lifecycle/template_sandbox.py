"""The sandbox of templates: they can read values, loop over them and call macros, nothing else.

Jinja's sandbox forbids what is known to be dangerous; this one allows only what mails need. Values
have items, but no methods and no attributes; only macros can be called; few filters exist; every
loop and call is counted.
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

# Loop iterations and macro calls in one part: a long list in a mail needs hundreds.
MAX_STEPS = 5_000
# No `safe`, `attr`, `format`, `center`, `replace` …: they allow raw HTML, reach attributes, or
# produce long texts from short ones.
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "e", "escape", "first", "float", "int", "items",
    "join", "last", "length", "list", "lower", "reverse", "round", "sort", "string", "sum",
    "title", "trim", "truncate", "unique", "upper", "urlencode",
)  # fmt: skip
_TESTS = (
    "boolean", "defined", "divisibleby", "eq", "even", "false", "float", "ge", "gt", "in",
    "integer", "iterable", "le", "lt", "mapping", "ne", "none", "number", "odd", "sequence",
    "string", "true", "undefined", "==", "!=", ">", ">=", "<", "<=",
)  # fmt: skip
# Plain directives only: a width such as %999999999d would fill the memory.
_time_format = re.compile(r"(?:[^%]|%-?[A-Za-z%])*").fullmatch
_BY_NAME = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)
_FORBIDDEN = (nodes.EvalContextModifier, nodes.ScopedEvalContextModifier)


class TemplateRefused(Exception):
    """A template does something forbidden; the text says what, without any value."""


class MissingVariable(UndefinedError):
    """A template uses a variable that does not exist: `name`, or the item `name` of `obj`."""

    def __init__(self, name: object, obj: object) -> None:
        super().__init__(f"there is no {name}")
        self.name = str(name)
        self.obj = obj


class MissingValue(StrictUndefined):
    """Stands for a variable that does not exist, and raises MissingVariable when it is used."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = None,
        name: str | None = None,
        exc: Any = None,
    ) -> None:
        raised: Any = lambda _: MissingVariable(name, obj)  # noqa: E731 -- Jinja calls it
        super().__init__(
            hint,
            obj,
            name,
            raised,
        )


def web(value: Any) -> Any:
    """A filter: a URL that is allowed in a link."""
    if isinstance(value, Undefined):
        str(value)
    if not (isinstance(value, str) and value.startswith(WEB)):
        raise TemplateRefused("a link must begin with https://, http:// or mailto:")
    return value


def time(value: Any, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    """A filter: a time in UTC, in the format `form`."""
    if not _time_format(form):
        raise TemplateRefused(
            "the format of a time must use plain directives only, such as %d.%m.%Y %H:%M"
        )
    if isinstance(value, Undefined):
        str(value)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise TemplateRefused("the value is not a time")
    return value.astimezone(UTC).strftime(form)


def shown(value: Any) -> Any:
    """Refuse to print a null value: no reader wants to see `None`."""
    if value is None:
        raise TemplateRefused(
            'a value is null: write what is to be shown instead, as in {{ name or "…" }}'
        )
    return value


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of one portal's templates in one language; `known` are its constants."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, source: Callable[[str], str | None], known: Mapping[str, Any]) -> None:
        super().__init__(
            loader=_Loader(source),
            undefined=MissingValue,
            finalize=shown,
            autoescape=is_html,
            auto_reload=False,
            cache_size=-1,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.globals.clear()
        self.filters = {name: FILTERS[name] for name in _FILTERS}
        self.filters["web"] = web
        self.filters["time"] = time
        self.filters["counted"] = self._counted
        self.tests = {name: TESTS[name] for name in _TESTS}
        self.steps = 0
        self.known = known

    def _parse(
        self,
        source: str,
        name: str | None,
        filename: str | None,
    ) -> nodes.Template:
        """Parse as Jinja does, fold constants, count loops, and refuse forbidden statements."""
        tree = fold(super()._parse(source, name, filename), self.known)
        for modifier in tree.find_all(_FORBIDDEN):
            raise TemplateSyntaxError("escaping cannot be changed here", modifier.lineno, name)
        for node in tree.find_all(_BY_NAME):
            template = getattr(node, "template")  # noqa: B009 -- all four types have it
            if not isinstance(template, nodes.Const):
                raise TemplateSyntaxError(
                    "the name of another template must be constant", node.lineno, name
                )
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(
                loop.iter,
                "counted",
                [],
                [],
                None,
                None,
                lineno=loop.lineno,
            )
        return tree

    def variables(self, name: str) -> dict[str, int]:
        """The variables that a file uses, without constants, with the line of the first use."""
        assert self.loader is not None
        source, _, _ = self.loader.get_source(self, name)
        tree = self.parse(source, name)
        # Jinja counts imported names as undeclared in blocks.
        undeclared = find_undeclared_variables(tree) - self.known.keys() - set(made_in(tree))
        first_lines: dict[str, int] = {}
        for node in tree.find_all(nodes.Name):
            if node.name in undeclared:
                first_lines.setdefault(node.name, node.lineno)
        return first_lines

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _step(self) -> None:
        # One counter for all threads: it bounds the cost of a mistake and need not be exact.
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TemplateRefused(f"it needs more than {MAX_STEPS} loop iterations and macro calls")

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute in obj:
                return obj[attribute]
        elif kind is TemplateModule:
            if attribute in vars(obj) and attribute[0] != "_":
                return vars(obj)[attribute]
        elif kind is LoopContext or kind is TemplateReference:
            return super().getattr(obj, attribute)  # Jinja's sandbox allows the harmless ones
        elif isinstance(obj, Undefined):
            str(obj)  # raises with the name of the missing variable
        return MissingValue(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            str(obj)
        if isinstance(obj, dict | list | tuple | str):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        return MissingValue(obj=obj, name="[…]")  # the index may be private

    def call(
        __self,
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
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

    def call_binop(
        self,
        context: Context,
        operator: str,
        left: Any,
        right: Any,
    ) -> Any:
        if operator == "**":
            raise TemplateRefused("there is no **")
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise TemplateRefused(f"{operator} is for numbers")
        return super().call_binop(
            context,
            operator,
            left,
            right,
        )


def _is_callable(obj: Any) -> bool:
    if isinstance(obj, MethodType):
        return isinstance(obj.__self__, LoopContext)
    return isinstance(obj, BlockReference | LoopContext)


def is_html(name: str | None) -> bool:
    """Whether values are escaped in a template; without a name, they are."""
    return name is None or name.endswith(".html")


class _Loader(BaseLoader):
    """Loads the files that were found when the templates were read, and no others."""

    def __init__(self, source: Callable[[str], str | None]) -> None:
        self._source = source

    def get_source(self, environment: Any, template: str) -> tuple[str, str | None, None]:
        source = self._source(template)
        if source is None:
            raise TemplateSyntaxError(f"there is no {template}", 1, template)
        return source, template, None
