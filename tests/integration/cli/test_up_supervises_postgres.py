"""`up` starts its own PostgreSQL again when it dies."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pillarbox.store.embedded import EmbeddedPostgres
from tests.integration.cli.cli_helpers import process
from tests.integration.cli.test_cli_processes import ANY_PORTS, run, url_of
from tests.places import data_directory


@pytest.fixture
def data() -> Iterator[Path]:
    with data_directory() as data:
        yield data


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "readyz", timeout=60) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_server_is_started_again_and_mails_flow(data: Path) -> None:
    server = EmbeddedPostgres(data / "postgres")
    send = (
        "send",
        "--data",
        str(data),
        "--from",
        "a@shop.example",
        "--to",
        "b@mail.example",
        "--wait",
    )
    with process("up", "--data", str(data), *ANY_PORTS) as up:
        url = url_of(up)
        run(*send)
        first = server.postmaster()
        assert first is not None
        configuration = server.data / "postgresql.conf"
        configuration.rename(configuration.with_suffix(".away"))  # it cannot start again yet
        os.kill(first, signal.SIGKILL)
        up.wait_for("the embedded PostgreSQL has ended", times=2)
        wait_for(lambda: not ready(url))
        configuration.with_suffix(".away").rename(configuration)
        up.wait_for("the embedded PostgreSQL runs again")
        wait_for(lambda: ready(url))
        assert server.postmaster() not in (None, first)
        assert "sent via capture" in run(*send)
        up.signal()
        assert up.end() == 0
        assert "stopped" in up.output
    assert not server.running()
    with process("up", "--data", str(data), *ANY_PORTS) as up:
        url_of(up)
        assert len(json.loads(run("captured", "list", "--data", str(data), "--json"))) == 2
        up.signal()
        assert up.end() == 0
