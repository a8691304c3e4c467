"""Constant folding: replaces a portal's name, colours and links when a template is loaded.

Jinja keeps constant text in one piece; a variable costs a microsecond, and the footer of a mail has
twenty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_LOOP_ATTRIBUTES = {"first", "last", "index", "length"}


def fold(tree: nodes.Template, known: Mapping[str, Any]) -> nodes.Template:
    """The template with constants for known variables; unchanged if it assigns one of them."""
    if any(name in known for name in made_in(tree)):
        return tree
    return _Folder(known).visit(tree)  # type: ignore[no-any-return]


def made_in(tree: nodes.Node) -> Iterator[str]:
    """The names of all variables that are assigned or imported below a node."""
    for node in tree.find_all((nodes.Name, nodes.Import, nodes.FromImport)):
        match node:
            case nodes.Name(name=name, ctx=context) if context != "load":
                yield name
            case nodes.Import(target=target):
                yield target
            case nodes.FromImport(names=names):
                for imported in names:
                    if isinstance(imported, str):
                        yield imported
                    else:
                        yield imported[1]


class _Folder(NodeTransformer):
    """Replaces known variables and their items, evaluates conditions, and joins constant text."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        for field, value in node.iter_fields():
            if isinstance(value, list) and any(isinstance(item, nodes.Output) for item in value):
                setattr(node, field, _join_outputs(value))
        return node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name not in self._known:
            return node
        return _constant(node, self._known[node.name])

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        owner = self.visit(node.node)
        match owner:
            case nodes.Const(value=dict(values)) if node.attr in values:
                return _constant(node, values[node.attr])
            case nodes.Const():
                return node  # fails when it is rendered, with its line
        node.node = owner
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """`a["b"]` is the same as `a.b`: values have no attributes."""
        match node.arg:
            case nodes.Const(value=str(name)):
                dotted = nodes.Getattr(
                    node.node,
                    name,
                    node.ctx,
                    lineno=node.lineno,
                    environment=node.environment,
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
                if value:
                    return node.else_
                return node.body
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node | list[nodes.Node]:
        names = _target_names(node.target)
        items = self.visit(node.iter)
        if names is None or not isinstance(items, nodes.Const) or not _can_unroll(node):
            return self.generic_visit(node)
        return self._unroll(node, names, list(items.value))

    def _unroll(
        self,
        node: nodes.For,
        names: list[str],
        items: list[Any],
    ) -> nodes.Node | list[nodes.Node]:
        if not items:
            return [self.visit(child) for child in node.else_]
        unrolled: list[nodes.Node] = []
        for index, item in enumerate(items):
            values = [item]
            if not isinstance(node.target, nodes.Name):
                values = list(item)
            known = {**self._known, **dict(zip(names, values, strict=True))}
            known["loop"] = {
                "first": index == 0,
                "last": index + 1 == len(items),
                "index": index + 1,
                "length": len(items),
            }
            folder = _Folder(known)
            for child in node.body:
                folded = folder.visit(_copy(child))
                if isinstance(folded, list):
                    unrolled += folded
                else:
                    unrolled.append(folded)
        return unrolled


def _can_unroll(node: nodes.For) -> bool:
    """Whether a loop assigns no variables and uses only simple attributes of `loop`."""
    if node.test or node.recursive:
        return False
    loop_uses = 0
    simple_uses = 0
    for part in node.body:
        if any(True for _ in made_in(part)):
            return False
        for name in part.find_all(nodes.Name):
            loop_uses += name.name == "loop"
        for attribute in part.find_all(nodes.Getattr):
            owner = attribute.node
            is_loop = isinstance(owner, nodes.Name) and owner.name == "loop"
            simple_uses += is_loop and attribute.attr in _LOOP_ATTRIBUTES
    return loop_uses == simple_uses


def _target_names(target: nodes.Node) -> list[str] | None:
    """The names that a loop assigns to each item; None if they are nested."""
    match target:
        case nodes.Name(name=name):
            return [name]
        case nodes.Tuple(items=items):
            names = [item.name for item in items if isinstance(item, nodes.Name)]
            if len(names) == len(items):
                return names
    return None


def _constant(node: nodes.Node, value: Any) -> nodes.Const:
    return nodes.Const(value, lineno=node.lineno, environment=node.environment)


def _join_outputs(body: list[Any]) -> list[Any]:
    """The nodes with adjacent outputs joined."""
    joined: list[Any] = []
    for node in body:
        is_output = isinstance(node, nodes.Output)
        if is_output and joined and isinstance(joined[-1], nodes.Output):
            joined[-1].nodes += node.nodes
        else:
            joined.append(node)
    return joined


def _copy(value: Any) -> Any:
    """A deep copy of a node."""
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if not isinstance(value, nodes.Node):
        return value
    copied = object.__new__(type(value))
    for name in value.fields:
        setattr(copied, name, _copy(getattr(value, name)))
    for name in value.attributes:
        setattr(copied, name, getattr(value, name))
    return copied
