"""Feedback while mails leave: how many events come in, how soon they are answered, and what
delivering feels of it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial

import asyncpg

from benchmarks import harness, installation, mails, twins
from benchmarks.harness import Bench, Process, Sample, Skipped, middle, percentile
from benchmarks.installation import Load
from benchmarks.report import Finding, Report, Table, compare, number, within
from pillarbox.testing.twins import SendGridTwin, TwinMail
from pillarbox.testing.twins.base import Kind
from pillarbox.testing.twins.mail import Record

RATE = 1_000  # events per second
BATCH = (10, 50)  # events in a request, from and to: SendGrid gathers them for some seconds
CONNECTIONS = 50  # of the worker
KEEPS_UP = 0.95  # of what is posted: the last answers come after the last posts
LIMIT = (
    500.0  # milliseconds for 99 of 100 answers: a provider gives up after seconds, and posts again
)
# More mails per second than will leave: the drain must not end before the feedback does.
MOST = 2_500
KINDS: Sequence[Kind] = ("delivered", "opened")  # what is said of each mail, one after the other
ABOUT = f"""One worker with {CONNECTIONS} connections drains waiting mails of 4 KB through a twin of
SendGrid ({twins.LATENCY * 1e3:.0f} ms for each answer). Meanwhile {RATE:,} events a second about
mails that have left ({", ".join(KINDS)}) are posted to `POST /webhooks/sendgrid/…` of `pillarbox
serve --roles api`, signed, {BATCH[0]} to {BATCH[1]} in a request, on schedule, from a process of
its own over {installation.SESSIONS} kept connections. The time of an answer counts from the moment
the request was due; it says that the events are committed. What leaves is counted for as long
before, during and after the feedback, with the same processes running."""
WITHOUT, WITH = "without feedback", "with feedback"
COLUMNS = ("", "events/s", "answers: p50 ms", "p95", "p99", "longest", "mails/s", "cores: front door", "worker",
           "PostgreSQL", "twin")  # fmt: skip
SENT = "SELECT count(*) FROM pillarbox.deliveries WHERE settled_at >= $1 AND settled_at < $2"
LEFT = "SELECT EXISTS (SELECT FROM pillarbox.deliveries WHERE state = 'queued' AND attempts = 0)"
Request = tuple[bytes, bytes]
_place = re.compile(r"\s*http\s.*127\.0\.0\.1:(\d+)").match


async def run(bench: Bench) -> Report:
    async with bench.schema("feedback") as url:
        async with harness.connected(url) as connection:
            await mails.stock(connection, mails.samples())
        results = await bench.rounds_of("feedback", {WITH: partial(_measure, bench, url)})
    return _report(results[WITH])


# --- reporting


def _report(runs: Sequence[Mapping[str, Sample]]) -> Report:
    table = Table("Mails → a twin, and its feedback back", COLUMNS)
    for name in (WITHOUT, WITH):
        got = [one[name].extra for one in runs]
        times = [
            number(_middle(got, one)) if name == WITH else "–"
            for one in ("p50", "p95", "p99", "longest")
        ]
        came = number(_middle(got, "events")) if name == WITH else "–"
        cores = [
            f"{_middle(got, one):.2f}" for one in ("front door", "worker", "PostgreSQL", "twin")
        ]
        table.rows.append(
            [name, came, *times, number(middle([one[name].rate for one in runs])), *cores]
        )
    heard = [one[WITH].extra for one in runs]
    events, due = _middle(heard, "events"), _middle(heard, "due")
    ours, alone = (middle([one[name].rate for one in runs]) for name in (WITH, WITHOUT))
    findings = [
        compare(
            "feedback while delivering",
            events,
            due,
            "posted",
            KEEPS_UP,
            "events/s",
        ),
        within("feedback while delivering, p99 of the answers", _middle(heard, "p99"), "ms", LIMIT),
        Finding(
            "delivering beside feedback",
            ours,
            "mails/s",
            alone,
            WITHOUT,
        ),
    ]
    missing = sum(one["missing"] for one in heard)
    note = f"Of {sum(one['posted'] for one in heard):,.0f} events that were answered, {missing:,.0f} are not stored."
    return Report(
        "feedback",
        ABOUT,
        [table],
        findings,
        [note],
    )


def _middle(some: Sequence[Mapping[str, float]], name: str) -> float:
    return middle([one[name] for one in some])


# --- measuring


async def _measure(bench: Bench, url: str) -> dict[str, Sample]:
    seconds = bench.scale(10, 4)
    history = RATE * seconds // len(KINDS)
    signer = SendGridTwin()  # never started: it describes and signs
    await twins.forget(url)
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(harness.connected(url))
        await mails.fill(watch, history + MOST * (3 * seconds + 5))
        to = await stack.enter_async_context(
            twins.twin("sendgrid", record=bench.directory / "feedback-mails")
        )
        [number] = await twins.use(url, to, webhook_key=signer.webhook_key)
        given = twins.SETTINGS | {"http": "127.0.0.1:0", "development": "on"}
        door = await stack.enter_async_context(
            harness.pillarbox(
                bench,
                url,
                "serve",
                "--roles",
                "api",
                **given,
            )
        )
        port = await _port(door)
        settings = twins.SETTINGS | {"worker_concurrency": CONNECTIONS}
        worker = await stack.enter_async_context(harness.worker(bench, url, **settings))
        known = await _sent(to, history, worker)
        requests = list(_requests(signer, known, number))
        load = await stack.enter_async_context(
            installation.load(bench, "http", port, [head for head, _ in requests])
        )
        crew = {"front door": door, "worker": worker, "twin": to.child}
        windows = Windows(bench, watch, crew, seconds)
        before = await windows.without()
        beside = await windows.beside(load, [events for _, events in requests])
        after = await windows.without()
        if not await watch.fetchval(LEFT):
            raise Skipped("the mails ran out before the feedback did")
    calm = {one: (before.extra[one] + after.extra[one]) / 2 for one in before.extra}
    return {
        WITHOUT: Sample((before.rate + after.rate) / 2, before.count + after.count, extra=calm),
        WITH: beside,
    }


class Windows:
    """Spans of time, all alike, in which is counted what leaves and what comes."""

    def __init__(
        self,
        bench: Bench,
        watch: asyncpg.Connection,
        crew: Mapping[str, Process],
        seconds: int,
    ) -> None:
        self._bench, self._watch, self._crew, self._seconds = bench, watch, crew, seconds

    async def without(self) -> Sample:
        begun, before = await self._now(), self._spent()
        await asyncio.sleep(self._seconds)
        return await self._counted(begun, await self._now(), before)

    async def beside(self, load: Load, sizes: Sequence[int]) -> Sample:
        """While all the feedback is posted; the load repeats none of it."""
        begun, before = await self._now(), self._spent()
        answers = await load.open(len(sizes) / self._seconds, self._seconds)
        sample = await self._counted(begun, await self._now(), before)
        took, posted = [one.took for one in answers], sum(sizes[: len(answers)])
        stored = await self._watch.fetchval("SELECT count(*) FROM pillarbox.feedback")
        shares = {f"p{share * 100:.0f}": percentile(took, share) for share in (0.5, 0.95, 0.99)}
        span = max(one.answered for one in answers) - min(one.due for one in answers)
        more = {
            "longest": max(took),
            "posted": posted,
            "missing": posted - stored,
            "due": posted / self._seconds,
        }
        return Sample(
            sample.rate,
            sample.count,
            extra={**sample.extra, **shares, **more, "events": stored / span},
        )

    async def _counted(
        self, begun: datetime, ended: datetime, before: Mapping[str, float]
    ) -> Sample:
        spent, seconds = self._spent(), (ended - begun).total_seconds()
        count = await self._watch.fetchval(SENT, begun, ended)
        cores = {kind: (spent[kind] - before[kind]) / seconds for kind in spent}
        return Sample(count / seconds, count, extra=cores)

    async def _now(self) -> datetime:
        found: datetime = await self._watch.fetchval("SELECT clock_timestamp()")
        return found

    def _spent(self) -> dict[str, float]:
        return {kind: one.cpu for kind, one in self._crew.items()} | {
            "PostgreSQL": self._bench.postgres_cpu()
        }


async def _port(door: Process) -> int:
    while not (line := await door.line(60)).startswith("stop"):
        if place := _place(line):
            port = int(place[1])
    return port


async def _sent(to: twins.TwinProcess, count: int, worker: Process) -> list[Record]:
    """Wait until so many mails have left; what the twin knows of them."""
    while await to.accepted() < count:
        if worker.child.returncode is not None:
            raise RuntimeError(f"the worker ended early: {worker.last_words()}")
        await asyncio.sleep(0.2)
    return to.records()[:count]


# --- what the provider says


def _requests(
    signer: SendGridTwin, known: Sequence[Record], provider: int
) -> Iterator[tuple[Request, int]]:
    """Whole signed requests, each as what stands before and after its number, and how many events
    it has.
    """
    dice = random.Random(42)
    left = [_mail(record, provider) for record in known]
    events = [
        event for kind in KINDS for mail in left for event in signer.describe(mail, kind, None, {})
    ]
    while events:
        size = dice.randint(*BATCH)
        some, events = events[:size], events[size:]
        headers, body = signer.sign(some)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"POST /webhooks/sendgrid/{provider} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}X-Number: "
        )
        yield (head.encode(), b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body), len(some)


def _mail(record: Record, provider: int) -> TwinMail:
    """A mail as its twin, another process, understood it."""
    uuid = record.message_uuid
    return TwinMail(
        id=record.id,
        sender="orders@shop.example",
        recipients=tuple(record.recipients),
        subject="",
        mime=None,
        body=None,
        message_uuid=uuid,
        headers={},
        variables={"pillarbox_message": uuid, "pillarbox_provider": str(provider)},
        personal={one: {"pillarbox_delivery": f"{uuid}.0"} for one in record.recipients},
    )
