"""`admin`: the administrators of this installation, their passwords and sessions."""

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
    from pillarbox.store.admins import Admin, AdminListItem

Email = Annotated[str, typer.Argument(metavar="EMAIL", help="The administrator's address.")]
Stdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")]
Env = Annotated[
    str | None,
    typer.Option(
        "--password-env", metavar="VAR", help="Read the password from this environment variable."
    ),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Manage administrators: passwords, recovery codes, sessions.", no_args_is_help=True
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
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Their name.")] = None,
    password_stdin: Stdin = False,
    password_env: Env = None,
) -> None:
    """Add an administrator, who signs in with a password and a code by mail.

    The password must have at least 12 characters.

    \b
    Examples:
      pillarbox admin create ada@example.com --name "Ada"
      pillarbox admin create ada@example.com --password-stdin < password.txt
    """
    secret = _new_password(email, password_stdin, password_env)
    async with context.app() as app:
        created = await app.lifecycle.administrators.create(email, name, secret)
    text = f"added {email}; for times without mail: pillarbox admin recovery-codes {email}"
    _report(context, created, text)


async def list_(context: CommandContext) -> None:
    """List administrators.

    \b
    Example:
      pillarbox admin list
    """
    async with context.app() as app:
        found = await admins.list_all(app.database)
    if context.json:
        output.print_json(found)
        return
    rows = [_row(admin) for admin in found]
    heads = ("address", "name~", "state", "last sign-in", "sessions#", "recovery codes#", "since")
    output.table(heads, rows, "no administrator: add one with `pillarbox admin create`")


def _row(admin: AdminListItem) -> tuple[object, ...]:
    state = "in force"
    if admin.disabled_at:
        state = "disabled"
    return (
        admin.email,
        admin.name,
        state,
        output.when(admin.last_login_at) or "never",
        str(admin.sessions),
        str(admin.recovery_codes),
        output.when(admin.created_at),
    )


async def password(
    context: CommandContext,
    email: Email,
    password_stdin: Stdin = False,
    password_env: Env = None,
) -> None:
    """Change an administrator's password. All their sessions end, and codes in transit become void.

    \b
    Example:
      pillarbox admin password ada@example.com
    """
    secret = _new_password(email, password_stdin, password_env)
    async with context.app() as app:
        changed = await app.lifecycle.administrators.change_password(email, secret)
    _report(context, changed, f"changed the password of {changed.email}; their sessions have ended")


async def disable(context: CommandContext, email: Email, yes: options.Yes = False) -> None:
    """Disable an administrator. All their sessions end at once.

    Keys that they made stay in force (`pillarbox key list`).

    \b
    Example:
      pillarbox admin disable ada@example.com
    """
    async with context.app() as app:
        found = await admins.get(app.database, email)
        options.confirm(f"Disable {found.email}?", yes)
        await app.lifecycle.administrators.disable(email)
    _report(context, found, f"disabled {found.email}; their sessions have ended")


async def enable(context: CommandContext, email: Email) -> None:
    """Enable a disabled administrator; the password stays the same.

    \b
    Example:
      pillarbox admin enable ada@example.com
    """
    async with context.app() as app:
        found = await app.lifecycle.administrators.enable(email)
    _report(context, found, f"enabled {found.email}")


async def recovery_codes(context: CommandContext, email: Email, yes: options.Yes = False) -> None:
    """Create ten recovery codes, each of which replaces one code by mail.

    They are shown only once. Old ones become void.

    \b
    Example:
      pillarbox admin recovery-codes ada@example.com
    """
    async with context.app() as app:
        found = await admins.get(app.database, email)
        question = f"Create new recovery codes for {found.email}? The old ones become void."
        options.confirm(question, yes)
        created = await app.lifecycle.administrators.new_recovery_codes(email)
    codes = [code.reveal() for code in created]
    if context.json:
        output.print_json({"email": found.email, "recovery_codes": codes})
        return
    print("\n".join(codes))
    output.note(
        f"recovery codes of {found.email}; each can be used once, with the password."
        " They are shown only once"
    )


async def sign_in(context: CommandContext, email: Email, yes: options.Yes = False) -> None:
    """Create a session without password and code, for times when mail does not work.

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
        f"a session of {found.email} until {output.when(session.expires_at)}; it is shown only once"
    )


def _new_password(email: str, stdin: bool, env: str | None) -> Secret:
    """A password from standard input, the environment or the terminal, where it is typed twice."""
    password = read_secret(
        "password",
        "password",
        stdin,
        env,
        of=email,
    )
    is_typed = not is_given("password", stdin, env) and sys.stdin.isatty()
    if is_typed and getpass.getpass("once more: ") != password.reveal():
        raise SecretError("the two passwords differ: nothing was changed")
    return password


def _report(context: CommandContext, admin: Admin, text: str) -> None:
    context.report(_public(admin), output.clean(text))


def _public(admin: Admin) -> dict[str, Any]:
    return {"id": admin.id, "email": admin.email, "name": admin.name}
