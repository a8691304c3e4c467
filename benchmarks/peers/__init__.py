"""What a user would pick instead, made to do the same.

Each program here says `ready`, waits for a line, drains the queue it filled, and prints how long
that took.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from benchmarks.harness import Bench, Process, Sample, Skipped, connected, process, sink

FOLDER = Path(__file__).parent
PACKAGES = {
    "pgqueuer": ("pgqueuer", "asyncpg"),
    "procrastinate": ("procrastinate", "psycopg[binary,pool]"),
}


async def aiosmtplib(
    bench: Bench,
    finished: Path,
    count: int,
    connections: int,
) -> Sample:
    """Plain aiosmtplib, the finished bytes from memory."""
    return await _measure(
        bench,
        sys.executable,
        "aiosmtplib_pool",
        str(finished),
        str(count),
        str(connections),
    )


async def python(
    bench: Bench,
    name: str,
    finished: Path,
    count: int,
) -> Sample:
    """A job queue from PyPI in a virtual environment of its own, 50 connections to the sink."""
    interpreter = await _installed(bench, name)
    async with connected(bench.server.url()) as admin:
        await admin.execute(f"CREATE DATABASE peer_{name}")
        try:
            url = bench.server.url(f"peer_{name}")
            return await _measure(
                bench,
                interpreter,
                f"{name}_drain",
                str(finished),
                str(count),
                "50",
                url,
            )
        finally:
            await admin.execute(f"DROP DATABASE peer_{name} WITH (FORCE)")


async def _measure(bench: Bench, interpreter: str, program: str, *arguments: str) -> Sample:
    log = bench.directory / f"{program}.log"
    async with sink() as to:
        command = (interpreter, str(FOLDER / f"{program}.py"), str(to.port), *arguments)
        async with process(*command, log=log) as peer:
            try:
                seconds, cpu = await _timed(bench, peer, to.child)
            except RuntimeError as error:
                raise Skipped(str(error)) from None
        arrived = await to.total()
    return Sample(arrived / seconds, arrived, cpu)


async def _timed(bench: Bench, peer: Process, to: Process) -> tuple[float, dict[str, float]]:
    await peer.line()
    before = (peer.cpu, bench.postgres_cpu(), to.cpu)
    peer.tell()
    seconds = float(await peer.line())
    after = (peer.cpu, bench.postgres_cpu(), to.cpu)
    spent = (later - earlier for earlier, later in zip(before, after, strict=True))
    return seconds, dict(zip(("worker", "PostgreSQL", "sink"), spent, strict=True))


async def _installed(bench: Bench, name: str) -> str:
    """The interpreter of a fresh environment with the package; made once per run."""
    home = bench.directory / f"venv-{name}"
    interpreter = str(home / "bin" / "python")
    if not home.exists():
        await _must(
            bench,
            sys.executable,
            "-m",
            "venv",
            str(home),
        )
        await _must(
            bench,
            interpreter,
            "-m",
            "pip",
            "install",
            "--quiet",
            "aiosmtplib",
            "uvloop",
            *PACKAGES[name],
        )
    return interpreter


async def _must(bench: Bench, *command: str) -> None:
    log = bench.directory / "install.log"
    async with process(*command, log=log) as child:
        try:
            code = await asyncio.wait_for(child.child.wait(), 300)
        except TimeoutError:
            code = 1
    if code:
        raise Skipped(f"`{' '.join(command[1:6])} …` failed: {child.last_words()}")
