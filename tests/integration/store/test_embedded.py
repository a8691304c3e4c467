"""The embedded PostgreSQL: who can reach it, where its data is, and what survives."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pillarbox.errors import StoreError
from pillarbox.store import embedded, service_account
from pillarbox.store.embedded import EmbeddedPostgres, bundled_binaries
from tests.conftest import server_binaries
from tests.places import temporary_directory

AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="PostgreSQL runs as another user only when started by root"
)
NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others may pass through, as a home directory often is."""
    with temporary_directory() as directory:
        yield directory


@pytest.fixture
def shared(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where data goes that PostgreSQL's uid cannot reach."""
    monkeypatch.setattr(service_account, "SHARED_DIRECTORIES", (place / "shared",))
    return place / "shared"


@pytest.fixture
def make() -> Iterator[Callable[[Path], EmbeddedPostgres]]:
    """Makes servers, and stops them at the end."""
    made = list[EmbeddedPostgres]()

    def make(directory: Path) -> EmbeddedPostgres:
        server = EmbeddedPostgres(directory / "postgres", server_binaries(), {"fsync": "off"})
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop("immediate")


Make = Callable[[Path], EmbeddedPostgres]


def numbers(server: EmbeddedPostgres) -> list[int]:
    with psycopg.connect(server.url()) as connection:
        return [
            number
            for (number,) in connection.execute("SELECT * FROM numbers ORDER BY 1").fetchall()
        ]


def fill(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE numbers AS SELECT generate_series(1, 3)")


def as_before(server: EmbeddedPostgres) -> None:
    """Leave the data as the first release did: a server that trusts its socket, as root the user nobody's."""
    with psycopg.connect(server.url()) as connection:
        connection.execute("ALTER ROLE postgres PASSWORD NULL")
    server.stop()
    server.password_file.unlink()
    (server.data / "pg_hba.conf").write_text("local all all trust\n")
    if os.geteuid() == 0:
        service_account.give(server.data, NOBODY)
        service_account.give(server.sockets, NOBODY)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def can(uid: int, *command: str | Path) -> bool:
    return (
        subprocess.run(command, user=uid, group=uid, extra_groups=[], check=False).returncode == 0
    )


def test_clients_need_the_password(place: Path, make: Make) -> None:
    server = make(place)
    server.start()
    fill(server)
    assert numbers(server) == [1, 2, 3]
    assert mode(server.password_file) == 0o600
    assert server.password_file.stat().st_uid == os.geteuid()
    password = server.password_file.read_text("utf-8").strip().rpartition(":")[2]
    assert len(password) >= 43
    assert password not in server.url()
    for wrong in ("", "postgres", password[:-1]):
        with pytest.raises(psycopg.OperationalError, match=r"password"):
            psycopg.connect(
                server.url().partition("&passfile")[0], password=wrong, passfile="/nowhere"
            )


def test_a_lost_password_is_replaced(place: Path, make: Make) -> None:
    server = make(place)
    server.start()
    fill(server)
    first = server.password_file.read_text("utf-8")
    server.stop()
    server.password_file.unlink()
    server.start()
    assert numbers(server) == [1, 2, 3]
    assert server.password_file.read_text("utf-8") != first
    assert "trust" not in (server.data / "pg_hba.conf").read_text()


def test_data_of_the_first_release_stays_and_gets_a_password(place: Path, make: Make) -> None:
    before = make(place)
    before.start()
    fill(before)
    as_before(before)
    server = make(place)
    server.start()
    assert numbers(server) == [1, 2, 3]
    with pytest.raises(psycopg.OperationalError, match=r"password"):
        psycopg.connect(server.url().partition("&passfile")[0], passfile="/nowhere")
    server.stop()
    server.start()
    assert numbers(server) == [1, 2, 3]


def test_an_interrupted_initdb_is_begun_again(place: Path, make: Make) -> None:
    (place / "postgres.new").mkdir()
    (place / "postgres.new" / "PG_VERSION").write_text("18\n")
    server = make(place)
    server.start()
    fill(server)
    assert not (place / "postgres.new").exists()


def test_a_directory_with_other_things_is_left_alone(place: Path, make: Make) -> None:
    (place / "postgres").mkdir()
    (place / "postgres" / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match=r"is not a database"):
        make(place).start()
    assert (place / "postgres" / "thesis.txt").read_text() == "years of work"


def test_a_killed_server_starts_again_though_its_processes_are_busy(
    place: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "ORPHANS_PATIENCE", 0.2)
    server = make(place)
    server.start()
    fill(server)
    postmaster = server.postmaster()
    assert postmaster is not None
    with psycopg.connect(server.url(), autocommit=True) as busy:
        [backend] = busy.execute("SELECT pg_backend_pid()").fetchone() or [0]
        endless = threading.Thread(target=run_endlessly, args=[busy])
        endless.start()
        with psycopg.connect(server.url(), autocommit=True) as watcher:
            query = "SELECT state FROM pg_stat_activity WHERE pid = %s AND query LIKE 'DO%%'"
            wait_for(lambda: watcher.execute(query, [backend]).fetchone() == ("active",))
        os.kill(postmaster, signal.SIGKILL)
        wait_for(lambda: not server.running())
        assert server._orphans() == {backend}
        server.start()
        endless.join()
    assert numbers(server) == [1, 2, 3]
    assert server.postmaster() not in (None, postmaster)


def run_endlessly(connection: psycopg.Connection) -> None:
    with contextlib.suppress(psycopg.Error):
        connection.execute("DO $$ BEGIN LOOP END LOOP; END $$")


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_process_of_another_program_is_not_taken_for_the_server(
    place: Path, make: Make
) -> None:
    server = make(place)
    server.start()
    server.stop()
    (server.data / "postmaster.pid").write_text(f"{os.getpid()}\n")
    assert not server.running()


# --- as root


@AS_ROOT
def test_root_leaves_permissions_alone_and_puts_data_within_reach(
    place: Path, shared: Path, make: Make
) -> None:
    hidden = place / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "app").mkdir(mode=0o750)
    modes = {path: mode(path) for path in (place, hidden, hidden / "app")}
    server = make(hidden / "app")
    server.start()
    fill(server)
    assert {path: mode(path) for path in modes} == modes
    assert (hidden / "app" / "postgres").is_symlink()
    assert server.data.is_relative_to(shared)
    server.stop()
    again = make(hidden / "app")
    again.start()
    assert numbers(again) == [1, 2, 3]
    assert len(list(shared.glob("data-*"))) == 1


@AS_ROOT
def test_root_keeps_data_in_its_place_where_others_may_pass(
    place: Path, shared: Path, make: Make
) -> None:
    server = make(place)
    server.start()
    assert server.data == place / "postgres"
    assert not server.directory.is_symlink()
    assert not shared.exists()


@AS_ROOT
def test_the_servers_uid_is_nobody_elses(place: Path, make: Make) -> None:
    first, second = make(place / "first"), make(place / "second")
    for server in (first, second):
        server.start()
    uids = [server.data.stat().st_uid for server in (first, second)]
    assert uids[0] != uids[1]
    for server, uid in zip((first, second), uids, strict=True):
        assert Path(f"/proc/{server.postmaster()}").stat().st_uid == uid
        assert uid in service_account.PRIVATE_UIDS
        with pytest.raises(KeyError):
            pwd.getpwuid(uid)
        assert mode(server.data) == mode(server.sockets) == 0o700
        assert not can(NOBODY, "ls", server.data)
        assert not can(NOBODY, "ls", server.sockets)
        assert not can(NOBODY, "cat", server.password_file)


@AS_ROOT
def test_a_uid_that_somebody_uses_meanwhile_is_left(place: Path, make: Make) -> None:
    server = make(place)
    server.start()
    fill(server)
    server.stop()
    uid = server.data.stat().st_uid
    with subprocess.Popen(["sleep", "600"], user=uid, group=uid, extra_groups=[]) as stranger:
        server.start()
        assert server.data.stat().st_uid != uid
        assert numbers(server) == [1, 2, 3]
        assert not can(uid, "ls", server.data)
        stranger.kill()


@AS_ROOT
def test_data_of_the_first_release_is_moved_from_where_only_root_may_enter(
    place: Path, shared: Path, make: Make
) -> None:
    hidden = place / "hidden"
    hidden.mkdir(mode=0o711)
    before = make(hidden)
    before.start()
    fill(before)
    as_before(before)
    hidden.chmod(0o700)
    server = make(hidden)
    server.start()
    assert numbers(server) == [1, 2, 3]
    assert mode(hidden) == 0o700
    assert server.data.is_relative_to(shared)
    assert not can(NOBODY, "ls", server.data)
    assert sorted(one.name for one in hidden.iterdir()) == ["postgres", "postgres.pgpass", "run"]


@AS_ROOT
@pytest.mark.parametrize("how_far", ["nothing", "copied", "renamed"])
def test_an_interrupted_move_loses_nothing(
    place: Path, shared: Path, make: Make, how_far: str
) -> None:
    hidden = place / "hidden"
    hidden.mkdir(mode=0o711)
    before = make(hidden)
    before.start()
    fill(before)
    before.stop()
    hidden.chmod(0o700)
    target = service_account.shared_directory() / "data-x" / "postgres"
    target.parent.mkdir(mode=0o711)
    (hidden / "postgres.moving").symlink_to(target)
    if how_far == "copied":
        shutil.copytree(hidden / "postgres", target, symlinks=True)
    if how_far == "renamed":
        (hidden / "postgres").rename(target)
    server = make(hidden)
    server.start()
    assert numbers(server) == [1, 2, 3]
    assert not (hidden / "postgres.moving").is_symlink()
    assert len(list(shared.glob("data-*"))) == 1


@AS_ROOT
def test_programs_are_shared_where_the_uid_cannot_reach_them(place: Path, shared: Path) -> None:
    hidden = place / "hidden"
    hidden.mkdir(mode=0o700)
    package = bundled_binaries().parents[1]
    for source in (package, package.with_name(package.name + ".libs")):
        shutil.copytree(source, hidden / source.name, symlinks=True)
    binaries = hidden / bundled_binaries().relative_to(package.parent)
    server = EmbeddedPostgres(place / "postgres", binaries, {"fsync": "off"})
    try:
        server.start()
        fill(server)
        [programs] = shared.glob("postgresql-*")
        program = Path(f"/proc/{server.postmaster()}/exe").resolve()
        assert program.is_relative_to(programs)
        assert (
            program.stat().st_ino == (binaries / "postgres").stat().st_ino
        )  # a link costs no space
        assert program.stat().st_uid == 0
        assert service_account.reachable_programs(binaries) == program.parent
    finally:
        server.stop("immediate")


@AS_ROOT
def test_a_shared_directory_that_others_could_write_to_is_refused(shared: Path) -> None:
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StoreError, match=r"other users may write to it"):
        service_account.shared_directory()
