"""Command classes whose help shows a flag as `--wait`; typer shows `--wait <bool>`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def _without_type(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class FlagCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_type(super().get_params(ctx))


class FlagGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_type(super().get_params(ctx))


def apply_to_groups(root: typer.Typer) -> None:
    """Use FlagGroup for a group of commands and all groups in it."""
    root.info.cls = FlagGroup
    for group in root.registered_groups:
        group.cls = FlagGroup
        if group.typer_instance:
            apply_to_groups(group.typer_instance)
