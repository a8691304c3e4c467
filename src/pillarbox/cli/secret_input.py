"""Reads secrets from a terminal, stdin or the environment; arguments are visible to others."""

from __future__ import annotations

import getpass
import os
import sys

import typer

from pillarbox.errors import SecretError
from pillarbox.model.secret import Secret


def is_given(flag: str, stdin: bool, env: str | None) -> bool:
    """Whether `--FLAG-stdin` or `--FLAG-env` was given; BadParameter if both were."""
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
    """Read a secret. `plain`: it must be printable ASCII, because it becomes part of a header."""
    if is_given(flag, stdin, env):
        if stdin:
            secret = sys.stdin.readline().rstrip("\r\n")
        else:
            secret = os.environ.get(env or "", "")
    elif sys.stdin.isatty():
        prompt = what
        if of:
            prompt += f" of {of}"
        secret = getpass.getpass(f"{prompt}: ")
    else:
        raise typer.BadParameter(f"no {what}: give --{flag}-stdin or --{flag}-env VAR")
    hint = ""
    if env:
        hint = f": is {env} set?"
    if not secret:
        raise SecretError(f"the {what} is empty{hint}")
    if plain and not (secret.isascii() and secret.isprintable()):
        raise SecretError(f"the {what} is not plain text{hint}")
    return Secret(secret)
