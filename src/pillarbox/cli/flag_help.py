"""Commands whose help shows a flag as `--wait`, where typer shows `--wait <bool>`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def _without_type(parameters: list[Any]) -> list[Any]:
    for one in parameters:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
    return parameters


class FlagCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_type(super().get_params(ctx))


class FlagGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_type(super().get_params(ctx))


def apply_to_groups(root: typer.Typer) -> None:
    """Let a group of commands, and all groups in it, be of our kind."""
    root.info.cls = FlagGroup
    for one in root.registered_groups:
        one.cls = FlagGroup
        if one.typer_instance:
            apply_to_groups(one.typer_instance)
