"""`admin`: the people who run this installation, and how they get in."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pillarbox.cli import options, output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.secret_input import is_given, read_secret
from pillarbox.errors import SecretError
from pillarbox.model.secret import Secret
from pillarbox.store import admins

if TYPE_CHECKING:
    from pillarbox.store.admins import Admin

Email = Annotated[str, typer.Argument(metavar="EMAIL", help="The administrator's address.")]
Stdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")]
Env = Annotated[
    str | None,
    typer.Option("--password-env", metavar="VAR", help="Take the password from this variable."),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Administrators: passwords, recovery codes, sessions.", no_args_is_help=True
    )
    command(group, "create")(create)
    command(group, "list")(list_)
    command(group, "password")(password)
    command(group, "disable")(disable)
    command(group, "enable")(enable)
    command(group, "recovery-codes")(recovery_codes)
    command(group, "sign-in")(sign_in)
    root.add_typer(group, name="admin")


async def create(
    context: CommandContext,
    email: Email,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What to call them.")
    ] = None,
    password_stdin: Stdin = False,
    password_env: Env = None,
) -> None:
    """Add an administrator. The password has 12 characters at least; a code by mail comes on top of it.

    \b
    Examples:
      pillarbox admin create ada@example.com --name "Ada"
      pillarbox admin create ada@example.com --password-stdin < password.txt
    """
    secret = _new_password(email, password_stdin, password_env)
    async with context.app() as app:
        made = await app.lifecycle.administrators.create(email, name, secret)
    _tell(
        context,
        made,
        f"added {email}; for when mail is broken: pillarbox admin recovery-codes {email}",
    )


async def list_(context: CommandContext) -> None:
    """List the administrators.

    \b
    Example:
      pillarbox admin list
    """
    async with context.app() as app:
        found = await admins.list_all(app.database)
    if context.json:
        output.print_json(found)
        return
    rows = [
        (one.email, one.name, "disabled" if one.disabled_at else "in force", output.when(one.last_login_at) or "never",
         str(one.sessions), str(one.recovery_codes), output.when(one.created_at))
        for one in found
    ]  # fmt: skip
    heads = ("address", "name~", "state", "last sign-in", "sessions#", "recovery codes#", "since")
    output.table(heads, rows, "no administrator: add one with `pillarbox admin create`")


async def password(
    context: CommandContext, email: Email, password_stdin: Stdin = False, password_env: Env = None
) -> None:
    """Give an administrator another password. All their sessions end, and codes on their way are void.

    \b
    Example:
      pillarbox admin password ada@example.com
    """
    secret = _new_password(email, password_stdin, password_env)
    async with context.app() as app:
        changed = await app.lifecycle.administrators.change_password(email, secret)
    _tell(context, changed, f"changed the password of {changed.email}; their sessions have ended")


async def disable(context: CommandContext, email: Email, yes: options.Yes = False) -> None:
    """Let an administrator in no more. All their sessions end at once; keys they made stay (`pillarbox key list`).

    \b
    Example:
      pillarbox admin disable ada@example.com
    """
    async with context.app() as app:
        found = await admins.get(app.database, email)
        options.confirm(f"Disable {found.email}?", yes)
        await app.lifecycle.administrators.disable(email)
    _tell(context, found, f"disabled {found.email}; their sessions have ended")


async def enable(context: CommandContext, email: Email) -> None:
    """Let an administrator in again, with the password they had.

    \b
    Example:
      pillarbox admin enable ada@example.com
    """
    async with context.app() as app:
        found = await app.lifecycle.administrators.enable(email)
    _tell(context, found, f"enabled {found.email}")


async def recovery_codes(context: CommandContext, email: Email, yes: options.Yes = False) -> None:
    """Print ten codes, each of which stands in once for the one by mail. They are shown once; old ones are void.

    \b
    Example:
      pillarbox admin recovery-codes ada@example.com
    """
    async with context.app() as app:
        found = await admins.get(app.database, email)
        options.confirm(
            f"Make new recovery codes for {found.email}? The old ones will be void.", yes
        )
        codes = [
            one.reveal() for one in await app.lifecycle.administrators.new_recovery_codes(email)
        ]
    if context.json:
        output.print_json({"email": found.email, "recovery_codes": codes})
        return
    print("\n".join(codes))
    output.note(
        f"recovery codes of {found.email}; each counts once, with the password. They are shown this once"
    )


async def sign_in(context: CommandContext, email: Email, yes: options.Yes = False) -> None:
    """Print a session, without password and mail: for whoever has this machine when mail is broken.

    \b
    Examples:
      pillarbox admin sign-in ada@example.com
      pillarbox admin sign-in ada@example.com --yes --json
    """
    async with context.app() as app:
        found = await admins.get(app.database, email)
        options.confirm(f"Begin a session as {found.email}?", yes)
        session = await app.lifecycle.administrators.sign_in_here(email)
    if context.json:
        output.print_json({"session": session.secret.reveal(), "expires_at": session.expires_at})
        return
    print(session.secret.reveal())
    output.note(
        f"a session of {found.email} until {output.when(session.expires_at)}; it is shown this once"
    )


def _new_password(email: str, stdin: bool, env: str | None) -> Secret:
    """A password from where it was said to be; typed twice where it is typed."""
    given = read_secret("password", "password", stdin, env, of=email)
    typed = not is_given("password", stdin, env) and sys.stdin.isatty()
    if typed and getpass.getpass("once more: ") != given.reveal():
        raise SecretError("the two passwords differ: nothing was changed")
    return given


def _tell(context: CommandContext, admin: Admin, text: str) -> None:
    output.print_json(_public(admin)) if context.json else output.say(output.clean(text))


def _public(admin: Admin) -> dict[str, Any]:
    return {"id": admin.id, "email": admin.email, "name": admin.name}
