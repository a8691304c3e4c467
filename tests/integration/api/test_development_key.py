"""The key of a development installation: made once, in a file that nobody else reads."""

from __future__ import annotations

import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pillarbox.app import App, open_app
from pillarbox.cli.first_run import ensure_development_key
from pillarbox.errors import SecretError
from pillarbox.settings import load
from pillarbox.store import access
from tests.harness import opened
from tests.places import short_directory


@pytest.fixture
def data() -> Iterator[Path]:
    directory = short_directory()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def embedded(data: Path, **settings: str) -> AsyncIterator[App]:
    given = load({}, overrides={"data_dir": str(data), "log_level": "error", **settings})
    async with open_app(given, start=True, migrating=True) as app:
        yield app


async def test_it_is_made_once_and_opens(data: Path) -> None:
    async with embedded(data) as app:
        path = await ensure_development_key(app)
        assert path == data / "development.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = path.read_text().strip()
        who = await app.authenticator.by_key(token, "127.0.0.1")
        assert who.tenant
        assert (who.name, who.tenant.name) == ("development", "default")
        assert sorted(who.scopes) == ["manage", "read", "send"]
        assert await ensure_development_key(app) == path
        assert path.read_text().strip() == token

        await access.revoke_key(app.database, (await access.list_keys(app.database))[0].id)
        await ensure_development_key(app)
        assert path.read_text().strip() != token
        path.unlink()
        await ensure_development_key(app)
        assert await app.authenticator.by_key(path.read_text().strip(), "127.0.0.1")
        assert len(await access.list_keys(app.database)) == 1
        assert len(await access.list_keys(app.database, revoked=True)) == 3
        assert [one.name for one in data.iterdir() if "development" in one.name] == [
            "development.key"
        ]

        path.chmod(0o644)
        with pytest.raises(SecretError, match="chmod 600"):
            await ensure_development_key(app)


async def test_there_is_none_outside_of_development(database_url: str, tmp_path: Path) -> None:
    async with opened(database_url, data_dir=tmp_path, development="on") as app:
        assert await ensure_development_key(app) is None
        assert await access.list_keys(app.database) == []
    assert list(tmp_path.iterdir()) == []
