"""The command line: translates options into calls and answers into text; decides nothing."""

from __future__ import annotations

from pillarbox.cli.main import main

__all__ = ["main"]
