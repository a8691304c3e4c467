"""The front door's way in: what it stores is what `enqueue` stores, shared commits and all."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import RFC_4122

import asyncpg
import pytest
import pytest_asyncio

from pillarbox import Attachment, Mail, enqueue
from pillarbox.accept.checks import check
from pillarbox.accept.intake import MAX_BATCH_MAILS, Intake, Receipt
from pillarbox.errors import InvalidMail, NotAllowed, PillarboxError, StoreError, UnknownName
from pillarbox.model.access import Scope
from pillarbox.model.delivery import delivery_id, parse_delivery_id
from pillarbox.store import intake as store
from pillarbox.store.database import Database
from pillarbox.telemetry.metrics import Metrics
from tests import PATIENCE
from tests.integration.accept.enqueue_corpus import ONLY_THE_DATABASE, PLAIN, corpus
from tests.integration.accept.intake_helpers import DEFAULT, count, mail, principal, rows_of
from tests.integration.accept.test_enqueue import RICH

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@pytest_asyncio.fixture
async def intake(database: Database) -> AsyncIterator[Intake]:
    intake = Intake(database, Metrics())
    yield intake
    await intake.close()


def good_mails() -> list[Mail]:
    """Those of the corpus that both ways accept, without their largest, and without what only time refuses."""
    found = []
    for fields in corpus():
        given = Mail(**fields)
        try:
            size = check(given)
        except (InvalidMail, TypeError):
            continue
        if size < 200_000 and given.expires_at is None and given.tenant == "default":
            found.append(replace(given, idempotency_key=None))
    return found


async def test_it_stores_what_enqueue_stores(
    intake: Intake, database: Database, connection: Any
) -> None:
    mails = [
        *good_mails(),
        replace(RICH, idempotency_key=None),
        mail(raw=b"Subject: \xff\r\n\r\nbody", text=None),
    ]
    mails += [
        mail(send_at=LATER),
        mail(send_at=LATER, expires_at=LATER + timedelta(hours=1)),
        mail(subject=None),
    ]
    assert len(mails) > 400
    receipts = await asyncio.gather(*(intake.accept(principal(), one) for one in mails))
    for given, receipt in zip(mails, receipts, strict=True):
        expected = await rows_of(database, await enqueue(connection, given))
        assert await rows_of(database, receipt.id) == expected, given
        deliveries = [
            (row["n"], row["role"].decode(), row["recipient"], row["state"]) for row in expected[2]
        ]
        assert [
            (n, role[0], address, receipt.state) for n, role, address in receipt.recipients
        ] == deliveries
        assert not receipt.repeated


async def test_what_only_the_database_knows(intake: Intake, database: Database) -> None:
    mails = [
        Mail(**(PLAIN | changes)) for changes, _ in ONLY_THE_DATABASE if "tenant" not in changes
    ]
    expected = [error for changes, error in ONLY_THE_DATABASE if "tenant" not in changes]
    mails.insert(3, mail())
    expected.insert(3, ("", ""))
    answers = await intake.accept_many(principal(), mails)
    found = [(one.code, one.field) if isinstance(one, InvalidMail) else ("", "") for one in answers]
    assert found == expected  # and the good one among them was stored
    assert (
        await count(database)
        == await count(database, "contents")
        == await count(database, "deliveries")
        == 1
    )
    with pytest.raises(UnknownName, match="there is no class 'gold'"):
        await intake.accept(principal(), mail(class_="gold"))


async def test_a_bad_mail_is_refused_before_the_others_are_stored(
    intake: Intake, database: Database
) -> None:
    first, bad, last = await intake.accept_many(principal(), [mail(1), mail(to="nobody"), mail(2)])
    assert isinstance(first, Receipt)
    assert isinstance(last, Receipt)
    assert isinstance(bad, InvalidMail)
    assert (bad.code, bad.field) == ("bad_address", "to")
    assert await count(database) == 2


@pytest.mark.req("REQ-QUEUE-N004")
async def test_the_order_of_acceptance_is_the_order_of_the_callers(
    intake: Intake, database: Database
) -> None:
    answers = await intake.accept_many(
        principal(), [mail(number) for number in range(3 * MAX_BATCH_MAILS)]
    )
    ids = [one.id for one in answers if isinstance(one, Receipt)]
    rows = await database.fetch("SELECT message_id FROM pillarbox.deliveries ORDER BY seq")
    place = {row["message_id"]: number for number, row in enumerate(rows)}
    for batch in (ids[n : n + MAX_BATCH_MAILS] for n in range(0, len(ids), MAX_BATCH_MAILS)):
        places = [place[id] for id in batch]
        assert places == sorted(places)


async def test_concurrent_callers_share_commits(intake: Intake, database: Database) -> None:
    receipts = await asyncio.gather(
        *(intake.accept(principal(), mail(number)) for number in range(300))
    )
    assert len({receipt.id for receipt in receipts}) == 300
    assert await database.fetchval("SELECT count(DISTINCT xmin::text) FROM pillarbox.messages") <= 4


@pytest.mark.req("REQ-QUEUE-E001")
async def test_ids_are_of_version_7_and_follow_the_databases_clock(
    intake: Intake, database: Database
) -> None:
    before = await store.clock(database)
    receipt = await intake.accept(principal(), mail())
    after = await store.clock(database)
    assert (receipt.id.version, receipt.id.variant) == (7, "specified in RFC 4122")
    assert int(before * 1000) - 20 <= receipt.id.int >> 80 <= int(after * 1000) + 20
    assert await database.fetchval("SELECT id FROM pillarbox.messages") == receipt.id


async def test_a_wrong_clock_of_ours_is_corrected(
    intake: Intake, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr("pillarbox.accept.intake.time.time", lambda: real() - 7 * 86400)
    receipt = await intake.accept(principal(), mail())
    assert abs((receipt.id.int >> 80) / 1000 - await store.clock(database)) < 5


def test_new_ids_are_in_order_and_use_all_their_random_bits() -> None:
    ids = store.new_ids(1000, 1_700_000_000.123)
    assert len(set(ids)) == 1000
    assert sorted(ids) == ids
    assert ids[-1] < store.new_ids(1, 1_700_000_000.1235)[0]
    assert {one.int >> 80 for one in ids} == {1_700_000_000_123}
    assert {(one.version, one.variant) for one in ids} == {(7, RFC_4122)}
    together, ever = 2**128 - 1, 0
    for one in ids:
        together, ever = together & one.int, ever | one.int
    assert together & (2**64 - 1) == 0x8000_0000_0000_0000
    assert ever & (2**64 - 1) == 0xBFFF_FFFF_FFFF_FFFF


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["a"],
        ["{a}"],
        ["a", "b"],
        ['"'],
        ["\\"],
        ['\\"', "{}", ",", "NULL", "", " ", "'", "é😀", "\t"],
    ],
)
async def test_array_literals(values: list[str], database: Database) -> None:
    read = "SELECT CASE WHEN starts_with($1, '{') THEN $1::text[] ELSE ARRAY[$1] END"
    assert await database.fetchval(read, store.one_or_array(values)) == values


async def test_the_tenants_defaults(intake: Intake, database: Database) -> None:
    with pytest.raises(InvalidMail) as caught:
        await intake.accept(principal(), mail(sender=None))
    assert (caught.value.code, caught.value.field) == ("bad_address", "sender")
    tenant = replace(DEFAULT, default_sender="Desk <desk@example.com>", default_class="bulk")
    for class_, sender in ((None, None), ("transactional", "me@example.com")):
        receipt = await intake.accept(principal(tenant), mail(class_=class_, sender=sender))
        row = await database.fetchrow(
            "SELECT class, sender FROM pillarbox.messages WHERE id = $1", receipt.id
        )
        assert tuple(row) == (class_ or "bulk", sender or "Desk <desk@example.com>")


async def test_limits_of_tenant_and_key(intake: Intake, database: Database) -> None:
    limited = replace(
        DEFAULT, max_recipients=1, sender_domains=("example.com",), max_message_bytes=5000
    )
    caller = principal(limited, recipient_domains=("example.net",))
    await intake.accept(caller, mail())
    refused: list[tuple[Mail, type[PillarboxError], str]] = [
        (mail(sender="a@other.example"), NotAllowed, "sender_domain"),
        (mail(to="a@other.example"), NotAllowed, "recipient_domain"),
        (mail(cc="b@example.net"), InvalidMail, "recipient_count"),
        (mail(text="x" * 5000), InvalidMail, "too_large"),
        (mail(tenant="other"), NotAllowed, "tenant"),
    ]
    for given, kind, code in refused:
        with pytest.raises(kind) as caught:
            await intake.accept(caller, given)
        assert caught.value.code == code
    for nobody in (principal(scopes=frozenset({Scope.READ})), principal(tenant=None)):
        with pytest.raises(NotAllowed):
            await intake.accept(nobody, mail())
    assert await count(database) == 1


@pytest.mark.parametrize("end", ["\r\n", "\n"])
async def test_a_raw_mail_may_not_show_another_domain(
    intake: Intake, database: Database, end: str
) -> None:
    limited = principal(tenant=replace(DEFAULT, sender_domains=("example.com",)))
    raw = f"Subject: =?utf-8?q?H=C3=A9?={end}From: Boss <boss@%s>{end}{end}From: me@elsewhere.example".replace
    forged = mail(
        sender="me@example.com", raw=raw("%s", "bank.example").encode(), text=None, subject=None
    )
    with pytest.raises(NotAllowed, match="From"):
        await intake.accept(limited, forged)
    honest = mail(
        sender="me@example.com", raw=raw("%s", "example.com").encode(), text=None, subject=None
    )
    receipt = await intake.accept(limited, honest)
    subject = await database.fetchval(
        "SELECT subject FROM pillarbox.messages WHERE id = $1", receipt.id
    )
    assert subject == "Hé"


async def test_the_received_header_of_a_raw_mail(intake: Intake, database: Database) -> None:
    raw = mail(raw=b"Subject: x\r\n\r\ny", text=None, subject=None)
    receipt = await intake.accept(principal(), raw, received='from "x" by y; today', source="smtp")
    headers = await database.fetchval(
        "SELECT headers->>'Received' FROM pillarbox.messages WHERE id = $1", receipt.id
    )
    assert headers == 'from "x" by y; today'


async def test_times_at_the_ends_of_the_calendar(intake: Intake) -> None:
    """A time zone may push them beyond what Python can say in UTC."""
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    assert (
        await intake.accept(principal(), mail(send_at=datetime(1, 1, 1, tzinfo=east)))
    ).state == "queued"
    await intake.accept(principal(), mail(expires_at=datetime.max.replace(tzinfo=west)))
    with pytest.raises(InvalidMail):
        await intake.accept(principal(), mail(send_at=datetime.max.replace(tzinfo=west)))


async def test_a_mail_that_cannot_be_stored_fails_alone(
    intake: Intake, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever slips through the checks: neither what asyncpg nor what PostgreSQL refuses harms the others."""
    monkeypatch.setattr("pillarbox.accept.prepare.check", lambda mail: 1024)
    bad = [
        mail(text="\ud800"),
        mail(text="a\0b"),
        mail(max_attempts=2**40),
        mail(max_attempts=2**14),
    ]
    answers = await intake.accept_many(principal(), [mail(1), *bad, mail(2)])
    assert [type(one) for one in answers] == [
        Receipt,
        InvalidMail,
        InvalidMail,
        InvalidMail,
        Receipt,
        Receipt,
    ]
    assert all(one.code == "not_storable" for one in answers if isinstance(one, InvalidMail))
    assert (
        await count(database)
        == await count(database, "contents")
        == await count(database, "deliveries")
        == 3
    )


async def test_a_database_that_refuses_is_everybodys_trouble(
    intake: Intake, database: Database
) -> None:
    await database.execute("ALTER TABLE pillarbox.contents RENAME TO elsewhere")
    answers = await intake.accept_many(principal(), [mail(1), mail(2)])
    assert all(isinstance(one, StoreError) for one in answers)
    await database.execute("ALTER TABLE pillarbox.elsewhere RENAME TO contents")
    assert await count(database) == 0
    await intake.accept(principal(), mail())


async def test_large_mails_go_in_bounded_batches(intake: Intake, database: Database) -> None:
    big = Attachment("big.bin", bytes(3 * 2**20))
    receipts = await asyncio.gather(
        *(intake.accept(principal(), mail(n, attachments=[big])) for n in range(4))
    )
    assert len(receipts) == 4
    assert await database.fetchval("SELECT count(DISTINCT xmin::text) FROM pillarbox.messages") == 4


async def test_workers_are_woken_at_the_commit(intake: Intake, database: Database) -> None:
    heard = asyncio.Event()
    async with database.listening({"pillarbox_wake": heard.set}):
        await intake.accept(principal(), mail(send_at=LATER))
        await intake.accept(principal(), mail())
        await asyncio.wait_for(heard.wait(), PATIENCE)


async def test_it_works_through_a_pooler(database_url: str) -> None:
    """Without prepared statements and settings of the session."""
    database = await Database.connect(database_url, statement_cache=False)
    intake = Intake(database, Metrics())
    answers = await intake.accept_many(
        principal(), [mail(1), mail(2, idempotency_key="k"), mail(2, idempotency_key="k")]
    )
    assert [one.repeated for one in answers if isinstance(one, Receipt)] == [False, False, True]
    await intake.close()
    await database.close()


async def test_what_is_counted(database: Database) -> None:
    metrics = Metrics()
    intake = Intake(database, metrics)
    await intake.accept_many(principal(), [mail(1), mail(2), mail(3, class_="none")])
    await intake.accept(principal(), mail(4, raw=b"x", text=None), source="smtp")
    await intake.close()
    text = metrics.render().decode()
    assert 'pillarbox_accepted_total{source="http"} 2.0' in text
    assert 'pillarbox_accepted_total{source="smtp"} 1.0' in text
    assert "pillarbox_accept_batch_messages_sum 3.0" in text
    assert "pillarbox_accept_commit_seconds_count 2.0" in text


@pytest.mark.req("REQ-QUEUE-N001")
async def test_the_database_is_killed_in_the_middle(database: Database, database_url: str) -> None:
    """What was answered exists whole; what got an error may or may not, but never half; then it goes on."""
    intake = Intake(database, Metrics())
    killer = await asyncpg.connect(database_url)
    answers: list[Any] = []

    async def caller(numbers: Any) -> None:
        for number in numbers:
            try:
                answers.append((await intake.accept(principal(), mail(number))).id)
            except StoreError as error:
                answers.append(error)

    numbers = iter(range(2000))
    callers = asyncio.gather(*(caller(itertools.islice(numbers, 100)) for _ in range(20)))
    while not callers.done():
        await killer.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await asyncio.sleep(0.02)
    await callers
    await killer.close()
    assert any(isinstance(one, StoreError) for one in answers)
    stored = {row["id"] for row in await database.fetch("SELECT id FROM pillarbox.messages")}
    assert {one for one in answers if not isinstance(one, StoreError)} <= stored
    for table in ("contents", "deliveries"):
        rows = await database.fetch(f"SELECT message_id FROM pillarbox.{table}")
        assert {row["message_id"] for row in rows} == stored
    assert (await intake.accept(principal(), mail())).state == "queued"
    await intake.close()


def test_public_ids_of_deliveries() -> None:
    (id,) = store.new_ids(1, 1_700_000_000)
    assert parse_delivery_id(delivery_id(id, 7)) == (id, 7)
    for bad in (
        "",
        str(id),
        f"{id}.",
        f"{id}.07",
        f"{id}.-1",
        f"{id}.x",
        f"{id!s}.1.1",
        f"{str(id).upper()}.1",
        f"{id.hex}.1",
    ):
        with pytest.raises(ValueError, match="a delivery's id"):
            parse_delivery_id(bad)
