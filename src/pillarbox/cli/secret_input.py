"""Secrets that people give: typed, piped or in a variable. Never as arguments, which others can read."""

from __future__ import annotations

import getpass
import os
import sys

import typer

from pillarbox.errors import SecretError
from pillarbox.model.secret import Secret


def is_given(flag: str, stdin: bool, env: str | None) -> bool:
    """Whether one of the options `--FLAG-stdin` and `--FLAG-env` was given; BadParameter if both were."""
    if stdin and env:
        raise typer.BadParameter(f"give --{flag}-stdin or --{flag}-env, not both")
    return stdin or bool(env)


def read_secret(
    what: str,
    flag: str,
    stdin: bool,
    env: str | None,
    *,
    of: str | None = None,
    plain: bool = False,
) -> Secret:
    """A secret from where it was said to be; asked for on a terminal. `plain`: it goes into a header, so ASCII."""
    if is_given(flag, stdin, env):
        found = sys.stdin.readline().rstrip("\r\n") if stdin else os.environ.get(env or "", "")
    elif sys.stdin.isatty():
        found = getpass.getpass(f"{what} of {of}: " if of else f"{what}: ")
    else:
        raise typer.BadParameter(f"no {what}: give --{flag}-stdin or --{flag}-env VAR")
    if not found or (plain and not (found.isascii() and found.isprintable())):
        wrong = "not plain text" if found else "empty"
        raise SecretError(f"the {what} is {wrong}{f': is {env} set?' if env else ''}")
    return Secret(found)
