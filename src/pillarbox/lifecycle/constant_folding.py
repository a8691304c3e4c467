"""What is known when a template is loaded is put in then: a portal's name, colours and links never change.

Jinja keeps constant text in one piece; a value that is looked up costs a microsecond, and a mail's
foot has twenty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_LOOP = {"first", "last", "index", "length"}


def fold(tree: nodes.Template, known: Mapping[str, Any]) -> nodes.Template:
    """A template with constants for known variables; one that makes variables of these names stays as it is."""
    if any(name in known for name in made_in(tree)):
        return tree
    return _Folder(known).visit(tree)  # type: ignore[no-any-return]


def made_in(node: nodes.Node) -> Iterator[str]:
    """The names of all variables that are made below a node."""
    for one in node.find_all((nodes.Name, nodes.Import, nodes.FromImport)):
        match one:
            case nodes.Name(name=name, ctx=ctx) if ctx != "load":
                yield name
            case nodes.Import(target=target):
                yield target
            case nodes.FromImport(names=names):
                yield from (name if isinstance(name, str) else name[1] for name in names)


class _Folder(NodeTransformer):
    """Replaces known names and what they have, decides what follows from them, and joins the text around."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        for field, value in node.iter_fields():
            if isinstance(value, list) and any(isinstance(one, nodes.Output) for one in value):
                setattr(node, field, _joined(value))
        return node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        return _constant(node, self._known[node.name]) if node.name in self._known else node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        owner = self.visit(node.node)
        match owner:
            case nodes.Const(value=dict(values)) if node.attr in values:
                return _constant(node, values[node.attr])
            case nodes.Const():
                return node  # fails when it is rendered, and says where
        node.node = owner
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """What is named in brackets is what is named behind a dot: values have no attributes of their own."""
        match node.arg:
            case nodes.Const(value=str(name)):
                dotted = nodes.Getattr(
                    node.node, name, node.ctx, lineno=node.lineno, environment=node.environment
                )
                return self.visit_Getattr(dotted)
        return self.generic_visit(node)

    def visit_If(self, node: nodes.If) -> nodes.Node | list[nodes.Node]:
        self.generic_visit(node)
        match node.test:
            case nodes.Const(value=value) if value:
                return node.body
            case nodes.Const() if not node.elif_:
                return node.else_
            case nodes.Not(node=nodes.Const(value=value)) if not node.elif_:
                return node.else_ if value else node.body
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node | list[nodes.Node]:
        names = _names(node.target)
        items = self.visit(node.iter)
        if names is None or not isinstance(items, nodes.Const) or not _is_plain(node):
            return self.generic_visit(node)
        return self._unrolled(node, names, list(items.value))

    def _unrolled(
        self, node: nodes.For, names: list[str], items: list[Any]
    ) -> nodes.Node | list[nodes.Node]:
        found: list[nodes.Node] = []
        for place, item in enumerate(items):
            values = [item] if isinstance(node.target, nodes.Name) else list(item)
            loop = {
                "first": place == 0,
                "last": place + 1 == len(items),
                "index": place + 1,
                "length": len(items),
            }
            folder = _Folder({**self._known, **dict(zip(names, values, strict=True)), "loop": loop})
            for one in map(_copy, node.body):
                made = folder.visit(one)
                found += made if isinstance(made, list) else [made]
        return found if items else [self.visit(one) for one in node.else_]


def _is_plain(node: nodes.For) -> bool:
    """Whether a loop can be written out: it makes no variables, and asks little about itself."""
    if node.test or node.recursive or any(True for one in node.body for _ in made_in(one)):
        return False
    asked = [one for part in node.body for one in part.find_all(nodes.Name) if one.name == "loop"]
    answered = [
        one
        for part in node.body
        for one in part.find_all(nodes.Getattr)
        if isinstance(one.node, nodes.Name) and one.node.name == "loop" and one.attr in _LOOP
    ]
    return len(asked) == len(answered)


def _names(target: nodes.Node) -> list[str] | None:
    """The names that a loop gives to each item."""
    match target:
        case nodes.Name(name=name):
            return [name]
        case nodes.Tuple(items=items) if all(isinstance(one, nodes.Name) for one in items):
            return [one.name for one in items if isinstance(one, nodes.Name)]
    return None


def _constant(node: nodes.Node, value: Any) -> nodes.Const:
    return nodes.Const(value, lineno=node.lineno, environment=node.environment)


def _joined(body: list[Any]) -> list[Any]:
    """Outputs that stand side by side as one."""
    found: list[Any] = []
    for one in body:
        if isinstance(one, nodes.Output) and found and isinstance(found[-1], nodes.Output):
            found[-1].nodes += one.nodes
        else:
            found.append(one)
    return found


def _copy(value: Any) -> Any:
    """A node and all below it anew."""
    if isinstance(value, list):
        return [_copy(one) for one in value]
    if not isinstance(value, nodes.Node):
        return value
    made = object.__new__(type(value))
    for name in value.fields:
        setattr(made, name, _copy(getattr(value, name)))
    for name in value.attributes:
        setattr(made, name, getattr(value, name))
    return made
