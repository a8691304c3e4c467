"""Idempotency at the front door: one key, one mail, whatever comes at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from pillarbox import Attachment, Mail, enqueue, enqueue_many
from pillarbox.accept.checks import to_json
from pillarbox.accept.intake import Intake, Receipt
from pillarbox.accept.mail import REQUEST_FIELDS
from pillarbox.accept.prepare import prepare_mail
from pillarbox.errors import IdempotencyConflict, InvalidMail, StoreError, UnknownName
from pillarbox.store.database import Database
from pillarbox.store.retention import purge
from pillarbox.telemetry.metrics import Metrics
from tests import PATIENCE
from tests.integration.accept.intake_helpers import DEFAULT, add_tenant, count, mail, principal
from tests.integration.accept.test_enqueue import RICH

KEY = "order 7"


@pytest_asyncio.fixture
async def intakes(database: Database) -> AsyncIterator[list[Intake]]:
    """Two, as two processes have."""
    found = [Intake(database, Metrics()), Intake(database, Metrics())]
    yield found
    for intake in found:
        await intake.close()


@pytest.fixture
def intake(intakes: list[Intake]) -> Intake:
    return intakes[0]


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_hundred_equal_requests_at_once(
    processes: int, intakes: list[Intake], database: Database
) -> None:
    given = mail(cc="copy@example.net", idempotency_key=KEY)
    receipts = await asyncio.gather(
        *(intakes[n % processes].accept(principal(), given) for n in range(100))
    )
    assert [receipt.repeated for receipt in receipts].count(False) == 1
    assert (
        len({(receipt.id, tuple(receipt.recipients), receipt.state) for receipt in receipts}) == 1
    )
    assert list(receipts[0].recipients) == [
        (0, "to", "user1@example.net"),
        (1, "cc", "copy@example.net"),
    ]
    for table, rows in (
        ("messages", 1),
        ("contents", 1),
        ("deliveries", 2),
        ("idempotency_keys", 1),
    ):
        assert await count(database, table) == rows


@pytest.mark.parametrize("processes", [1, 2])
async def test_different_requests_with_one_key_at_once(
    processes: int, intakes: list[Intake], database: Database
) -> None:
    answers = await asyncio.gather(
        *(
            intakes[n % processes].accept(principal(), mail(n, idempotency_key=KEY))
            for n in range(40)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Receipt) for one in answers) == 1
    assert sum(isinstance(one, IdempotencyConflict) for one in answers) == 39
    assert await count(database) == 1


async def test_a_repeated_request_later(intake: Intake, database: Database) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for given in (
        mail(idempotency_key="a"),
        mail(idempotency_key="b", send_at=later),
        replace(RICH),
    ):
        first = await intake.accept(principal(), given)
        again = await intake.accept(principal(), given)
        assert again == replace(first, repeated=True)
        with pytest.raises(IdempotencyConflict) as caught:
            await intake.accept(principal(), replace(given, subject="another"))
        assert (caught.value.code, caught.value.field) == (
            "idempotency_conflict",
            "idempotency_key",
        )
    assert await count(database) == 3


async def test_mails_with_and_without_keys_in_one_batch(intake: Intake, database: Database) -> None:
    mails = [
        mail(1),
        mail(2, idempotency_key="a"),
        mail(2, idempotency_key="a"),
        mail(3, idempotency_key="a"),
        mail(4),
    ]
    mails += [mail(5, idempotency_key="b", class_="none"), mail(5, idempotency_key="b"), mail(6)]
    one, first, again, conflict, four, unknown, five, six = await intake.accept_many(
        principal(), mails
    )
    assert all(
        isinstance(answer, Receipt) and not answer.repeated
        for answer in (one, first, four, five, six)
    )
    assert isinstance(first, Receipt)
    assert again == replace(first, repeated=True)
    assert isinstance(conflict, IdempotencyConflict)
    assert isinstance(unknown, UnknownName)  # and it did not use the key up
    assert await count(database) == 5


async def test_a_refused_mail_does_not_use_the_key_up(intake: Intake) -> None:
    for bad in (
        mail(to="nobody"),
        mail(class_="none"),
        mail(expires_at=datetime.now(UTC) - timedelta(1)),
    ):
        with pytest.raises(InvalidMail):
            await intake.accept(principal(), replace(bad, idempotency_key=KEY))
    assert not (await intake.accept(principal(), mail(idempotency_key=KEY))).repeated


async def test_tenants_keys_are_their_own(intake: Intake, database: Database) -> None:
    other = await add_tenant(database, "other")
    given = mail(idempotency_key=KEY)
    mine, theirs = await asyncio.gather(
        intake.accept(principal(), given),
        intake.accept(principal(other), replace(given, subject="theirs")),
    )
    assert mine.id != theirs.id
    assert not mine.repeated
    assert not theirs.repeated
    with pytest.raises(IdempotencyConflict):
        await intake.accept(principal(other), given)


WAYS = [
    mail(idempotency_key=KEY),
    mail(idempotency_key=KEY, sender=None, subject=None, class_="bulk", priority="urgent"),
    mail(idempotency_key=KEY, to=["a@b.example", "a@b.example"], cc="c@d.example", bcc=["e@f.example"]),
    mail(idempotency_key=KEY, text=None, raw=b"Subject: x\n\nline\n"),
    mail(idempotency_key=KEY, send_at=datetime.now(UTC) + timedelta(hours=2), tags="x", kind="y"),
    mail(idempotency_key=KEY, metadata={"b": [1, None], "a": "ä"}, headers={"X-A": "1"}),
    mail(idempotency_key=KEY, attachments=[Attachment("a.txt", b"x" * 100)], max_attempts=3),
    replace(RICH, idempotency_key=KEY),
]  # fmt: skip


@pytest.mark.parametrize("given", WAYS)
@pytest.mark.parametrize("first_by", ["sql", "json", "intake"])
async def test_the_same_request_by_another_way_is_a_replay(
    given: Mail, first_by: str, intake: Intake, database: Database, connection: asyncpg.Connection
) -> None:
    await database.execute("UPDATE pillarbox.tenants SET default_sender = 'shop@example.com'")
    tenant = replace(DEFAULT, default_sender="shop@example.com")

    async def by_intake(mail: Mail) -> Any:
        return (await intake.accept(principal(tenant), mail)).id

    async def by_json(mail: Mail) -> Any:
        return (await enqueue_many(connection, [mail]))[0]

    ways = {"sql": lambda mail: enqueue(connection, mail), "json": by_json, "intake": by_intake}
    first = await ways[first_by](given)
    for way in ways.values():
        assert await way(given) == first
        with pytest.raises(IdempotencyConflict):
            await way(replace(given, subject="another"))
    assert await count(database) == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_a_key_in_an_open_transaction_holds_up_nobody_else(
    commits: bool, intake: Intake, database: Database, connection: asyncpg.Connection
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await enqueue(connection, mail(3, idempotency_key=KEY))
    mails = [mail(1), mail(2, idempotency_key="mine"), mail(3, idempotency_key=KEY), mail(4)]
    *others, waited, last = await asyncio.wait_for(intake.accept_many(principal(), mails), PATIENCE)
    assert all(isinstance(one, Receipt) for one in (*others, last))
    assert isinstance(waited, StoreError)
    assert "still open" in str(waited)
    await (transaction.commit() if commits else transaction.rollback())
    (answer,) = await intake.accept_many(principal(), [mail(3, idempotency_key=KEY)])
    assert isinstance(answer, Receipt)
    assert answer.repeated == commits


async def test_many_requests_with_a_key_in_an_open_transaction_wait_together(
    intake: Intake, database: Database, connection: asyncpg.Connection
) -> None:
    async with connection.transaction():
        await enqueue(connection, mail(idempotency_key=KEY))
        mails = [mail(n, idempotency_key=KEY) for n in range(20)]
        answers = await asyncio.wait_for(intake.accept_many(principal(), mails), PATIENCE)
    assert [type(one) for one in answers] == [StoreError] * 20


async def test_many_keys_in_any_order_at_once(intakes: list[Intake], database: Database) -> None:
    """Two statements that take the same keys in opposite orders must not wait for each other."""
    mails = [mail(n, idempotency_key=f"key {n}") for n in range(60)]
    chance = random.Random(7)
    for _ in range(5):
        orders = [chance.sample(mails, len(mails)) for _ in range(4)]
        answers = await asyncio.gather(
            *(intakes[n % 2].accept_many(principal(), order) for n, order in enumerate(orders))
        )
        assert all(isinstance(one, Receipt) for answer in answers for one in answer)
        assert await count(database) == 60


async def test_a_repeat_is_known_after_the_message_is_gone(
    intake: Intake, database: Database
) -> None:
    """Retention may drop a message after minutes; its key stays for a day."""
    given = mail(idempotency_key=KEY)
    first = await intake.accept(principal(), given)
    await database.execute("UPDATE pillarbox.deliveries SET state = 'sent', settled_at = now()")
    await purge(database, 0.0, 0.0, 100)
    assert await count(database) == 0
    assert await intake.accept(principal(), given) == replace(first, repeated=True)


async def test_a_lost_look_up_does_not_unsay_what_was_stored(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    await intake.accept(principal(), mail(idempotency_key=KEY))

    async def away(*_: Any) -> Any:
        raise StoreError("away")

    monkeypatch.setattr("pillarbox.accept.intake.store.known_keys", away)
    stored, repeated = await intake.accept_many(principal(), [mail(2), mail(idempotency_key=KEY)])
    assert isinstance(stored, Receipt)
    assert isinstance(repeated, StoreError)


SAME: list[tuple[Mail, Mail]] = [
    (mail(to="a@b"), mail(to=["a@b"])),
    (mail(cc=()), mail(cc=[])),
    (mail(tags="x"), mail(tags=("x",))),
    (mail(headers={}), mail()),
    (mail(headers={"A": "1", "B": "2"}), mail(headers={"B": "2", "A": "1"})),
    (
        mail(metadata={"a": {"x": 1, "y": 2}, "b": 1}),
        mail(metadata={"b": 1, "a": {"y": 2, "x": 1}}),
    ),
    (
        mail(send_at=datetime(2030, 1, 1, 12, tzinfo=UTC)),
        mail(send_at=datetime(2030, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))),
    ),
    (mail(raw=b"x", text=None), mail(raw=bytearray(b"x"), text=None)),
]


async def request_hash(database: Database, given: Mail) -> bytes:
    """The hash that is stored for a mail. Mails that cannot be accepted have one, too."""
    fields = given if given.idempotency_key else replace(given, idempotency_key="any")
    try:
        row = prepare_mail(principal(DEFAULT), fields, None, "http").row
    except InvalidMail:
        known = REQUEST_FIELDS.given(fields)
        row = prepare_mail(principal(DEFAULT), mail(idempotency_key="any"), None, "http").row
        row = row._replace(fields=to_json(known), text=fields.text, html=fields.html)
    return bytes(
        await database.fetchval(
            "SELECT pillarbox._request_hash($1::text::jsonb, $2, $3, $4, $5::text::jsonb)",
            row.fields,
            row.text,
            row.html,
            row.raw,
            row.attachments,
        )
    )


async def test_requests_that_are_the_same(database: Database) -> None:
    for one, other in SAME:
        assert await request_hash(database, one) == await request_hash(database, other)


DIFFERENT = [
    mail(), mail(2), mail(sender=None), mail(to=()), mail(to=["a@b", "c@d"]), mail(to="a@b", cc="c@d"),
    mail(to="a@b", bcc="c@d"), mail(to="a@b", reply_to="c@d"), mail(subject=None), mail(subject=""), mail(text=""),
    mail(text=None), mail(html=""), mail(html="A body"), mail(text=None, html="A body"), mail(text=None, raw=b"x"),
    mail(text=None, raw=b"y"), mail(headers={"A": "1"}), mail(headers={"A": "2"}), mail(class_="bulk"),
    mail(kind="bulk"), mail(priority="bulk"), mail(tags="bulk"), mail(max_attempts=1), mail(metadata={}),
    mail(metadata={"a": 1}), mail(metadata={"a": "1"}), mail(send_at=datetime(2030, 1, 1, tzinfo=UTC)),
    mail(expires_at=datetime(2030, 1, 1, tzinfo=UTC)), mail(send_at=datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    mail(attachments=[Attachment("a", b"x")]), mail(attachments=[Attachment("a", b"y")]),
    mail(attachments=[Attachment("b", b"x")]), mail(attachments=[Attachment("a", b"x", "text/plain")]),
    mail(attachments=[Attachment("a", b"x", content_id="c")]), mail(attachments=[Attachment("a", b"x")] * 2),
]  # fmt: skip


async def test_requests_that_differ(database: Database) -> None:
    hashes = {await request_hash(database, given) for given in DIFFERENT}
    assert len(hashes) == len(DIFFERENT)
    assert {(len(found), found[0]) for found in hashes} == {(33, 2)}


async def test_the_key_itself_and_the_tenant_are_not_part_of_the_request(
    database: Database,
) -> None:
    hashes = [
        await request_hash(database, given)
        for given in (mail(), mail(idempotency_key="a"), mail(tenant="default"))
    ]
    assert len(set(hashes)) == 1
