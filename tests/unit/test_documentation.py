"""The documentation is under test: what exists is described, commands exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import typer

from pillarbox.accept import checks
from pillarbox.accept.mail import Attachment, Mail
from pillarbox.api.server import build
from pillarbox.cli.main import root
from pillarbox.model.access import Order, Scope
from pillarbox.model.access_settings import SETTINGS
from pillarbox.model.delivery import State
from pillarbox.model.outcome import Reason, Verdict
from pillarbox.model.provider_kinds.smtp import SmtpSettings, Tls
from pillarbox.model.retry import POLICIES
from pillarbox.setting_sources import PREFIX
from pillarbox.settings import SPECS
from pillarbox.telemetry import metrics
from pillarbox.testing import Extensions, Faults

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
# What a reader could not open: somebody's home, or where somebody keeps a checkout.
FOREIGN_PATH = re.compile(
    r"(?<![\w.])/(?:home|root|Users|work|workspace|private)/[\w.]|[A-Z]:\\Users"
)


def page(path: Path) -> str:
    return path.read_text("utf-8")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def section(text: str, title: str) -> str:
    """A heading's own text, up to the next heading of the same or a higher level."""
    found = re.search(
        rf"^(#+) {re.escape(title)}$(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found, f"no heading {title!r}"
    return found[2]


def code_words(text: str) -> set[str]:
    """Everything that stands between back quotes."""
    return set(re.findall(r"`([^`\n]+)`", text))


# --- what follows from the code


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    assert generator().stale() == [], "run: python docs/generate.py"


@pytest.mark.parametrize("name", SPECS)
def test_every_setting_is_documented(name: str) -> None:
    about = section(page(REFERENCE / "settings.md"), name)
    assert f"`{PREFIX}{name.upper()}`" in about
    assert SPECS[name].short is None or f"`{SPECS[name].short}`" in about
    assert SPECS[name].why in about


@pytest.mark.parametrize("name", metrics.METRICS)
def test_every_metric_is_documented(name: str) -> None:
    assert f"`{metrics.PREFIX}{name}`" in page(REFERENCE / "metrics.md")


def commands() -> dict[str, Any]:
    """Every command and group by its full name."""
    return dict(generator().walk(typer.main.get_command(root), "pillarbox"))


COMMANDS = commands()
LEAVES = [path for path, command in COMMANDS.items() if not getattr(command, "commands", None)]


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_and_option_is_documented(path: str) -> None:
    words = code_words(section(page(REFERENCE / "cli.md"), path))
    flags = {flag for one in COMMANDS[path].params for flag in one.opts[:1] if flag.startswith("-")}
    assert flags <= words
    assert COMMANDS[path].help, "a command without help"


def test_every_route_is_documented() -> None:
    routes = {
        re.sub(r":\w+}", "}", route.path) for route in build(cast(Any, None), "127.0.0.1").routes
    }
    assert routes == {word for word in code_words(page(REFERENCE / "http.md")) if word in routes}


# --- words


@pytest.mark.parametrize("word", State)
def test_every_state_is_documented(word: State) -> None:
    assert f"| `{word}` |" in section(page(REFERENCE / "states.md"), "States")


@pytest.mark.parametrize("word", Verdict)
def test_every_verdict_is_documented(word: Verdict) -> None:
    assert f"| `{word}` |" in section(page(REFERENCE / "states.md"), "Verdicts")


@pytest.mark.parametrize("word", Reason)
def test_every_reason_is_documented(word: Reason) -> None:
    assert f"| `{word}` |" in section(page(REFERENCE / "states.md"), "Reasons")


@pytest.mark.parametrize("name", POLICIES)
def test_every_retry_policy_is_documented(name: str) -> None:
    assert f"| `{name}` | {POLICIES[name].max_attempts} |" in page(
        DOCS / "explanation/retry-policies.md"
    )


@pytest.mark.parametrize("word", [*(one.name for one in fields(SmtpSettings)), *Tls])
def test_every_setting_of_a_provider_is_documented(word: str) -> None:
    assert f"| `{word}`" in page(DOCS / "how-to/add-an-smtp-provider.md")


@pytest.mark.parametrize("word", [*Scope, *Order])
def test_every_scope_and_order_is_documented(word: str) -> None:
    assert f"| `{word}` |" in page(REFERENCE / "access.md")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_a_tenant_is_documented(name: str) -> None:
    assert f"`{name}`" in section(page(REFERENCE / "access.md"), "Tenants")


# --- SQL


def migrations(package: str = "pillarbox.store.migrations") -> str:
    folder = resources.files(package)
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return "\n".join(folder.joinpath(file).read_text("utf-8") for file in files)


SQL = migrations()
SCHEMA = migrations("pillarbox.store.schema")
LIFECYCLE = migrations("pillarbox.store.lifecycle_migrations").replace("{schema}", "pillarbox")


def arguments(function: str) -> list[str]:
    """The arguments of a function."""
    pattern = rf"CREATE OR REPLACE FUNCTION pillarbox\.{function}\((.*?)\) RETURNS"
    newest = re.findall(pattern, SCHEMA, re.DOTALL)[-1]
    return [argument.split()[0] for argument in newest.split(",")]


@pytest.mark.parametrize("function", ["enqueue", "enqueue_many"])
def test_every_argument_of_a_function_is_documented(function: str) -> None:
    words = code_words(section(page(REFERENCE / "sql.md"), f"pillarbox.{function}"))
    assert set(arguments(function)) <= words


def test_every_error_code_is_documented() -> None:
    in_sql = set(re.findall(r"_fail\('(PB\d+)', '(\w+)'", SQL))
    text = page(REFERENCE / "sql.md")
    assert in_sql
    assert not [pair for pair in in_sql if f"| `{pair[1]}` | `{pair[0]}` |" not in text]


def test_every_error_code_of_python_is_documented() -> None:
    in_python = set(re.findall(r'InvalidMail\(\s*"(\w+)"', page(Path(checks.__file__))))
    both = page(REFERENCE / "sql.md") + page(REFERENCE / "python.md")
    assert in_python
    assert not [code for code in in_python if f"| `{code}` |" not in both]


def limits() -> dict[str, int]:
    names = [name for name in vars(checks) if re.match(r"MAX_|OVERHEAD_", name)]
    return {name: getattr(checks, name) for name in names}


@pytest.mark.parametrize("name", limits())
def test_every_limit_is_documented_with_its_value(name: str) -> None:
    line = next(
        (one for one in page(REFERENCE / "sql.md").splitlines() if f"`{name}` |" in one), ""
    )
    value = limits()[name]
    shown = f"{value // 2**20} MiB" if value % 2**20 == 0 else f"{value:,}"
    assert shown in line


def test_every_column_of_the_view_is_documented() -> None:
    body = re.search(r"CREATE VIEW pillarbox\.delivery_logs AS\nSELECT(.*?)\nFROM", SQL, re.DOTALL)
    assert body
    columns = re.findall(r"(?: AS |\.)(\w+),?$", body[1], re.MULTILINE)
    assert len(columns) == 10
    words = code_words(section(page(REFERENCE / "sql.md"), "pillarbox.delivery_logs"))
    assert set(columns) <= words


def tables() -> dict[str, set[str]]:
    """The columns of every table."""
    found = {}
    pattern = r"^CREATE TABLE pillarbox\.(\w+) \((.*?)^\)"
    for name, body in re.findall(pattern, SQL + LIFECYCLE, re.MULTILINE | re.DOTALL):
        words = re.findall(r"^  (\"?\w+\"?) ", body, re.MULTILINE)
        found[name] = {word.strip('"') for word in words} - {
            "PRIMARY",
            "CONSTRAINT",
            "UNIQUE",
            "CHECK",
            "FOREIGN",
        }
    return found


@pytest.mark.parametrize("table", tables())
def test_every_column_of_a_table_is_documented(table: str) -> None:
    assert tables()[table] <= code_words(section(page(REFERENCE / "schema.md"), table))


def test_every_sensitive_column_stands_in_the_runbook() -> None:
    runbook = section(page(DOCS / "runbook.md"), "What is sensitive in backups and dumps")
    rows = [row for row in runbook.splitlines() if row.startswith("| `")]
    schema = page(REFERENCE / "schema.md")
    for table in tables():
        for column in re.findall(r"`(\w+)` ●", section(schema, table)):
            told = [row for row in rows if f"`{table}." in row]
            assert any(f"{table}.*" in row or f".{column}`" in row for row in told), (
                f"{table}.{column}"
            )


# --- Python


def test_every_field_of_a_mail_is_documented() -> None:
    text = page(REFERENCE / "python.md")
    assert {one.name for one in fields(Mail)} <= code_words(page(REFERENCE / "fields.md"))
    assert {one.name for one in fields(Attachment)} <= code_words(section(text, "Attachment"))


def test_mail_and_enqueue_have_the_same_fields() -> None:
    in_sql = {name.strip('"') for name in arguments("enqueue")}
    assert {one.name.rstrip("_") for one in fields(Mail)} == in_sql


def test_every_dial_of_the_scripted_server_is_documented() -> None:
    words = code_words(page(REFERENCE / "testing.md"))
    assert {one.name for one in fields(Faults)} <= words
    assert {one.name for one in fields(Extensions)} <= words


# --- what the pages say


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", page(path), flags=re.DOTALL)
    targets = re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", text)
    broken = [target for target in targets if not leads_somewhere(path, target)]
    assert broken == []


def leads_somewhere(path: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return True
    file, _, anchor = target.partition("#")
    there = (path.parent / file).resolve() if file else path
    return there.exists() and (not anchor or anchor in anchors(there))


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.+)$", page(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(path: Path, language: str) -> Iterator[str]:
    yield from re.findall(rf"^ *```{language}\n(.*?)^ *```", page(path), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_commands_in_pages_exist(path: Path) -> None:
    shell = "\n".join(blocks(path, "sh")).replace("\\\n", " ")
    in_prose = [word for word in code_words(page(path)) if word.startswith("pillarbox ")]
    wrong = [
        line for line in [*shell.splitlines(), *in_prose] for fault in faults_of(line) if fault
    ]
    assert wrong == []


def faults_of(line: str) -> Iterator[str]:
    """What is wrong with the commands in a line of shell."""
    for called in re.findall(r"(?:^|[\s(/])pillarbox ([^|>&;)#`]+)", line):
        yield fault_of(called.replace('"', " ").replace("…", "").split())


def fault_of(words: list[str]) -> str:
    command = COMMANDS["pillarbox"]
    while words and (children := getattr(command, "commands", None)):
        if words[0] == "--version" or words[0] not in children:
            return "" if words[0] == "--version" else f"no command {words[0]}"
        command = children[words.pop(0)]
    known = {flag for one in command.params for flag in [*one.opts, *one.secondary_opts]} | {
        "--help"
    }
    strange = {word.partition("=")[0] for word in words if re.match(r"--\w", word)} - known
    return f"no option {sorted(strange)}" if strange else ""


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_python_in_pages_is_python(path: Path) -> None:
    for block in blocks(path, "python"):
        compile(block, str(path), "exec", flags=0x2000)  # PyCF_ALLOW_TOP_LEVEL_AWAIT


def sources() -> Iterator[Path]:
    yield from (
        path
        for path in ROOT.iterdir()
        if path.is_file() and path.suffix in {".md", ".toml", ".yaml"}
    )
    for folder in ("docs", "src", "tests", "benchmarks"):
        for kind in ("md", "py", "sql", "svg"):
            yield from (
                path for path in (ROOT / folder).rglob(f"*.{kind}") if path != Path(__file__)
            )


def test_no_file_contains_paths_of_a_machine() -> None:
    found = {named(path): FOREIGN_PATH.findall(page(path)) for path in sources()}
    assert {path: paths for path, paths in found.items() if paths} == {}
