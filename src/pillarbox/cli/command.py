"""The base of all commands: common options, settings, the event loop, errors as one line."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from pillarbox.app import App, open_app
from pillarbox.cli import output
from pillarbox.cli.flag_help import FlagCommand
from pillarbox.errors import PillarboxError, SettingsError, StoreError
from pillarbox.settings import SPECS, Settings, load
from pillarbox.store.opening import shown_url
from pillarbox.telemetry import logs

P = ParamSpec("P")
Work = Coroutine[Any, Any, int | None]
# The exit code of a program that was interrupted, by convention.
INTERRUPTED = 130

Text = str | None


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=annotation,
    )


def setting(name: str, flag: str, metavar: str) -> inspect.Parameter:
    """An option that overrides a setting, with the setting's help."""
    flags = [flag]
    full_flag = "--" + name.replace("_", "-")
    if flag != full_flag:
        flags.append(full_flag)
    option = typer.Option(
        *flags,
        metavar=metavar,
        help=SPECS[name].help,
        show_default=False,
        rich_help_panel=PANEL,
    )
    return _parameter(name, Annotated[Text, option])


PANEL = "Common options"
HTTP = setting("http", "--http", "HOST:PORT")
CONCURRENCY = setting("worker_concurrency", "--concurrency", "N")
TEMPLATE_DIRS = setting("template_dirs", "--template-dirs", "DIRS")
STORE = (setting("database_url", "--database-url", "URL"), setting("data_dir", "--data", "DIR"))
COMMON = (
    _parameter(
        "config",
        Annotated[
            Path | None,
            typer.Option(
                "--config",
                metavar="FILE",
                help="Read settings from this file.",
                rich_help_panel=PANEL,
            ),
        ],
    ),
    setting("log_level", "--log-level", "LEVEL"),
)
JSON = _parameter(
    "json",
    Annotated[
        bool, typer.Option("--json", help="Print JSON, for programs.", rich_help_panel=PANEL)
    ],
    False,
)


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The settings and common options of a command."""

    settings: Settings
    json: bool = False

    @asynccontextmanager
    async def app(self) -> AsyncIterator[App]:
        """The application, for a short command: it logs warnings only, unless configured."""
        quiet = self.settings
        if "log_level" not in quiet.sources:
            quiet = replace(quiet, log_level="warning")
        with placed(quiet):
            async with open_app(quiet, owns_process=True) as app:
                yield app

    def report(self, value: object, text: str) -> None:
        """Print `value` as JSON with --json, else `text`."""
        if self.json:
            output.print_json(value)
        else:
            output.say(text)


# SQLSTATE classes of an unavailable server: connection exception, insufficient resources, operator
# intervention.
UNAVAILABLE = ("08", "53", "57")


@contextlib.contextmanager
def placed(settings: Settings) -> Iterator[None]:
    """Inside, errors of the database name the database."""
    try:
        yield
    except StoreError as error:
        if not str(error).startswith("PostgreSQL: "):
            raise
        reason, place = str(error).removeprefix("PostgreSQL: "), shown_url(settings)
        if error.sqlstate is None or error.sqlstate[:2] in UNAVAILABLE:
            raise StoreError(
                f"lost the database {place}: {reason}. Is it still running?"
            ) from error
        raise StoreError(f"the database {place} refused: {reason}", error.sqlstate) from error


def command(
    group: typer.Typer,
    name: str,
    *options: inspect.Parameter,
    store: bool = True,
    json: bool = True,
) -> Callable[
    [Callable[Concatenate[CommandContext, P], Work]], Callable[Concatenate[CommandContext, P], Work]
]:
    """Register an async function as a command.

    It gets a CommandContext and its own options; it may return an exit code.
    """
    shared = list(options)
    if store:
        shared += STORE
    shared += COMMON
    if json:
        shared.append(JSON)

    def register(
        function: Callable[Concatenate[CommandContext, P], Work],
    ) -> Callable[Concatenate[CommandContext, P], Work]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def call(**values: Any) -> None:
            raise typer.Exit(guarded(lambda: _run(function, values)))

        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in own] + shared
        )
        call.__doc__ = function.__doc__
        group.command(name, cls=FlagCommand)(call)
        return function

    return register


def _run(function: Callable[..., Work], values: dict[str, Any]) -> int:
    logs.write_warnings()
    file, json = values.pop("config", None), values.pop("json", False)
    overrides = {name: values.pop(name) for name in list(values) if name in SPECS}
    context = CommandContext(load(file=file, overrides=overrides), json)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(function(context, **values)) or 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop if it is installed; it halves the cost of a mail."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def guarded(run: Callable[[], int]) -> int:
    """Run; print an error as one line on stderr and return an exit code, without a traceback."""
    try:
        code = run()
        sys.stdout.flush()  # here, where an error can still be reported
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Exit as exit:
        return exit.exit_code
    except (typer.Abort, typer.BadParameter):
        raise
    except SystemExit:  # raised by rich when the reader has closed the pipe
        return 0
    except BaseException as error:
        first = first_of(error)
        # The reader has closed the pipe: `pillarbox queue list | head`.
        if isinstance(first, BrokenPipeError):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        output.error(explain(first))
        return 1


def first_of(error: BaseException) -> BaseException:
    """The first PillarboxError of a group, or else its first error."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_of(one) for one in error.exceptions]
    return next((one for one in leaves if isinstance(one, PillarboxError)), leaves[0])


def explain(error: BaseException) -> str:
    """The text of an error for the command line."""
    if isinstance(error, SettingsError):
        return str(error).replace("\n", "\n       ")
    if isinstance(error, StoreError) and str(error).startswith("cannot connect"):
        return (
            f"{error}. Is it running, and is the URL right?"
            " (--database-url, PILLARBOX_DATABASE_URL)"
        )
    if isinstance(error, PillarboxError):
        return str(error)
    if getattr(error, "sqlstate", None):
        return f"PostgreSQL refused: {error}"
    return f"unexpected {type(error).__name__}: {error} (a fault in Pillarbox: please report it)"
