"""Sign-in codes for people with accounts: mailed, tried, used once; strangers learn nothing."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pillarbox import AsyncClient, Client
from pillarbox.errors import ForgedToken, WrongCode
from pillarbox.lifecycle.constant_time import DEFAULT_INTERVAL
from pillarbox.lifecycle.one_time_codes import (
    WRONG_CODES_PER_DAY,
    CodeRequest,
    IssuedCode,
    OneTimeCodes,
    _hash_code,
    open_codes,
    realm_of,
)
from pillarbox.lifecycle.services import LifecycleServices
from pillarbox.model.access import Scope
from pillarbox.model.secret import Secret
from pillarbox.settings import load
from pillarbox.store import providers
from pillarbox.store.database import Database
from pillarbox.store.lifecycle import TokenStore
from pillarbox.store.vault import EncryptionKeyRing
from tests.integration.api.api_helpers import SECRET_KEY, Answer, Api, api_of
from tests.integration.api.api_helpers import Client as HttpClient
from tests.integration.lifecycle.lifecycle_helpers import KEY, code_in, install, new_account, wrong

REALM = realm_of("lifecycle")
ADA, NOBODY = "ada@mail.example", "nobody@mail.example"
SENDER = "Hub <hub@shop.example>"


class World:
    """An installation with accounts, and the application's backend that asks."""

    def __init__(self, api: Api, backend: HttpClient) -> None:
        self.api = api
        self.backend = backend

    @property
    def database(self) -> Database:
        return self.api.database

    async def ask(self, email: str = ADA) -> Answer:
        return await self.backend.post("/sign-in", {"email": email})

    async def challenge(self, email: str = ADA) -> str:
        answer = await self.ask(email)
        assert answer.status == 202, answer.content
        return str(answer.json["challenge"])

    async def verify(self, code: str, **which: Any) -> Answer:
        return await self.backend.post("/sign-in/verify", {"code": code, **which})

    async def mails(self) -> list[Any]:
        query = "SELECT m.*, c.text, c.html FROM pillarbox.messages m LEFT JOIN pillarbox.contents c ON m.id = c.message_id"
        return await self.database.fetch(f"{query} ORDER BY m.id")

    async def code(self) -> str:
        return code_in((await self.mails())[-1]["text"])

    async def pass_time(self, interval: str = "2 minutes") -> None:
        await self.database.execute(
            f"UPDATE pillarbox.challenges SET created_at = created_at - interval '{interval}'"
        )

    async def account(self, email: str, **values: Any) -> int:
        given = {"email": email, "login": email.partition("@")[0], "status": "active"} | values
        return await new_account(self.database, **given)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with api_of(database_url, lifecycle_sender=SENDER) as api:
        await install(api.database)
        made = World(api, await api.key("default", Scope.SEND))
        await made.account(ADA, name="Ada")
        yield made


# --- signing in


async def test_a_code_signs_in(world: World) -> None:
    asked = await world.ask()
    assert (asked.status, set(asked.json), asked.json["expires_in"]) == (
        202,
        {"challenge", "expires_in"},
        600,
    )
    [mail] = await world.mails()
    assert (mail["to"], mail["sender"], mail["class"]) == ([ADA], SENDER, "lifecycle")
    assert (mail["kind"], mail["lane"]) == ("hub_sign_in_code", 0)
    code = await world.code()
    assert code in mail["html"]
    answer = await world.verify(code, challenge=asked.json["challenge"])
    assert answer.status == 200
    account = answer.json["account"]
    assert account == {"id": account["id"], "email": ADA, "login": "ada", "status": "active"}


async def test_the_mail_is_in_the_accounts_portal_and_language(world: World) -> None:
    await world.account("max@mail.example", portal="org", locale="de-AT")
    await world.ask("MAX@mail.example")
    [mail] = await world.mails()
    assert (mail["kind"], mail["to"]) == ("org_sign_in_code", ["max@mail.example"])
    assert "Minuten" in mail["text"]


async def test_a_code_counts_once_even_at_the_same_time(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    answers = await asyncio.gather(*(world.verify(code, challenge=challenge) for _ in range(10)))
    assert sorted(one.status for one in answers) == [200, *[422] * 9]
    assert (await world.verify(code, challenge=challenge)).json["void"] is True


async def test_a_code_is_of_its_challenge(world: World) -> None:
    await world.account("bob@mail.example")
    first, code = await world.challenge(), await world.code()
    second = await world.challenge("bob@mail.example")
    if code != await world.code():
        assert (await world.verify(code, challenge=second)).status == 422
    assert (await world.verify(code, challenge=first)).status == 200


async def test_a_code_to_an_address_that_changed_does_not_count(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    await world.database.execute("UPDATE lifecycle.accounts SET email = 'Other@mail.example'")
    answer = await world.verify(code, challenge=challenge)
    assert (answer.status, answer.json["void"]) == (422, True)
    again = await world.challenge("other@mail.example")
    assert (await world.verify(await world.code(), challenge=again)).status == 200


async def test_asking_for_an_address_that_is_nearly_the_same_keeps_nobody_out(world: World) -> None:
    """What counts as the same address does not depend on the database's language, nor differ from what is found."""
    await world.account("änne@mail.example")
    await world.challenge("ÄNNE@mail.example")
    assert await world.mails() == [], "capitals are those of ASCII"
    challenge = await world.challenge("änne@MAIL.example")
    assert (await world.verify(await world.code(), challenge=challenge)).status == 200


async def test_codes_are_not_shown_to_readers_of_messages(world: World) -> None:
    """A key that may read sees that there was a mail, and not what it says."""
    await world.ask()
    [mail] = await world.mails()
    reader = await world.api.key("default", Scope.READ)
    told = await reader.get(f"/messages/{mail['id']}")
    raw = await reader.get(f"/messages/{mail['id']}/raw")
    assert (told.status, raw.status) == (200, 403)
    assert (await world.code()).encode() not in told.content + raw.content


# --- guessing


async def test_five_wrong_codes_are_the_end(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    answers = [await world.verify(wrong(code), challenge=challenge) for _ in range(5)]
    assert [(one.status, one.json["type"]) for one in answers] == [(422, "/problems/code")] * 5
    assert [one.json["void"] for one in answers] == [False, False, False, False, True]
    assert (await world.verify(code, challenge=challenge)).status == 422


async def test_parallel_guesses_have_no_more_tries(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    guesses = [f"{(int(code) + n) % 10**6:06}" for n in range(1, 51)]
    answers = await asyncio.gather(*(world.verify(one, challenge=challenge) for one in guesses))
    assert {one.status for one in answers} == {422}
    assert sum(one.json["void"] is False for one in answers) == 4  # the fifth was the last
    row = await world.database.fetchrow("SELECT tries, void, used_at FROM pillarbox.challenges")
    assert row is not None
    assert tuple(row) == (5, True, None)


async def test_of_fifty_guesses_with_the_right_one_among_them_five_count(world: World) -> None:
    """Whichever come first: the right one counts or not, but never a sixth try."""
    for n in range(5):
        email = f"guess{n}@mail.example"
        await world.account(email)
        challenge, code = await world.challenge(email), await world.code()
        guesses = [wrong(code)] * 49 + [code]
        answers = await asyncio.gather(*(world.verify(one, challenge=challenge) for one in guesses))
        right = sum(one.status == 200 for one in answers)
        tries = await world.database.fetchval("SELECT max(tries) FROM pillarbox.challenges")
        assert right <= 1
        assert tries <= 5


async def test_whoever_guesses_all_day_waits_longer(world: World) -> None:
    for _ in range(WRONG_CODES_PER_DAY // 5):
        challenge, code = await world.challenge(), await world.code()
        for _ in range(5):
            await world.verify(wrong(code), challenge=challenge)
        await world.pass_time()
    assert len(await world.mails()) == WRONG_CODES_PER_DAY // 5
    assert await world.challenge() == challenge  # nothing new, although the pause is over
    assert len(await world.mails()) == WRONG_CODES_PER_DAY // 5
    await world.pass_time("1 hour")
    assert await world.challenge() != challenge
    await world.database.execute(
        "UPDATE pillarbox.challenges SET used_at = now(), tries = tries + 1, void = false"
    )
    assert await world.challenge() != challenge


async def test_a_code_expires(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    await world.database.execute("UPDATE pillarbox.challenges SET expires_at = now()")
    answer = await world.verify(code, challenge=challenge)
    assert (answer.status, answer.json["void"]) == (422, True)


async def test_whoever_was_suspended_meanwhile_does_not_get_in(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    await world.database.execute("UPDATE lifecycle.accounts SET status = 'suspended'")
    assert (await world.verify(code, challenge=challenge)).status == 422


async def test_whoever_was_deleted_meanwhile_does_not_get_in(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    await world.database.execute("DELETE FROM lifecycle.accounts")
    assert (await world.verify(code, challenge=challenge)).status == 422


@pytest.mark.parametrize(
    "challenge", ["", "x", "A" * 43, "A" * 101, "é" * 43, "../../etc", None, 7]
)
async def test_forged_challenges_are_refused(world: World, challenge: Any) -> None:
    answer = await world.verify("123456", challenge=challenge)
    assert answer.status == 422
    assert answer.json["type"] in ("/problems/code", "/problems/invalid-request")


async def test_an_administrators_challenge_signs_no_account_in(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    await world.database.execute("UPDATE pillarbox.challenges SET realm = 'admin'")
    assert (await world.verify(code, challenge=challenge)).status == 422


# --- asking again


async def test_asking_again_at_once_mails_nothing(world: World) -> None:
    answers = await asyncio.gather(*(world.ask() for _ in range(8)), world.ask(ADA.upper()))
    assert {one.status for one in answers} == {202}
    assert len({one.json["challenge"] for one in answers}) == 1
    assert len(await world.mails()) == 1
    assert (
        await world.verify(await world.code(), challenge=answers[0].json["challenge"])
    ).status == 200


async def test_asking_later_voids_the_old_code(world: World) -> None:
    old, old_code = await world.challenge(), await world.code()
    await world.pass_time()
    new = await world.challenge()
    assert new != old
    assert (await world.verify(old_code, challenge=old)).json["void"] is True
    [first, second] = await world.mails()
    states = dict(
        await world.database.fetch("SELECT message_id, state::text FROM pillarbox.deliveries")
    )
    assert (states[first["id"]], states[second["id"]]) == ("cancelled", "queued")
    assert first["text"] is None
    events = await world.database.fetch("SELECT kind, data::text FROM pillarbox.events")
    assert [one["kind"] for one in events] == ["cancelled"]
    assert "superseded" in events[0]["data"]
    assert (await world.verify(await world.code(), challenge=new)).status == 200


async def test_a_mail_that_has_left_is_not_touched(world: World) -> None:
    await world.ask()
    await world.database.execute("UPDATE pillarbox.deliveries SET state = 'sent'")
    await world.pass_time()
    await world.ask()
    states = await world.database.fetch("SELECT state::text FROM pillarbox.deliveries ORDER BY seq")
    assert [row["state"] for row in states] == ["sent", "queued"]


async def test_after_signing_in_the_next_code_comes_at_once(world: World) -> None:
    for _ in range(2):
        challenge = await world.challenge()
        assert (await world.verify(await world.code(), challenge=challenge)).status == 200
    assert len(await world.mails()) == 2


# --- strangers


async def strangers(world: World) -> list[str]:
    await world.account("new@mail.example", status="provisioned")
    await world.account("out@mail.example", status="suspended")
    return [NOBODY, "new@mail.example", "out@mail.example"]


async def test_answers_do_not_tell_who_has_an_account(world: World) -> None:
    emails = [ADA, *await strangers(world)]
    asked = [await world.ask(email) for email in emails]
    assert {(one.status, len(one.content), one.json["expires_in"]) for one in asked} == {
        (202, len(asked[0].content), 600)
    }
    assert len(await world.mails()) == 1
    again = [await world.ask(email) for email in emails]
    assert [one.json["challenge"] for one in again] == [one.json["challenge"] for one in asked]
    code = wrong(await world.code())
    for void in (False, False, False, False, True, True):
        answers = [await world.verify(code, challenge=one.json["challenge"]) for one in asked]
        assert {(one.status, one.content) for one in answers} == {(422, answers[0].content)}
        assert answers[0].json["void"] is void
    later = [await world.ask(email) for email in emails]
    assert {one.status for one in later} == {202}


async def test_no_code_answers_a_decoy(world: World) -> None:
    """Not even the one whose hash is kept."""
    codes = await open_codes(world.database, world.api.app.settings)
    async with world.database.transaction() as connection:
        [made] = await codes.issue(connection, REALM, [CodeRequest(None, NOBODY)])
    with pytest.raises(WrongCode):
        await codes.verify(world.database, REALM, codes.token_of(made.id), made.code)


async def test_the_time_does_not_tell_who_has_an_account(world: World) -> None:
    await world.ask("first@mail.example")  # what is made at first use
    known, unknown = [], []
    for n in range(10):
        await world.account(f"known{n}@mail.example")
        for email, taken in (
            (f"known{n}@mail.example", known),
            (f"unknown{n}@mail.example", unknown),
        ):
            begun = time.perf_counter()
            await world.challenge(email)
            taken.append(time.perf_counter() - begun)
    assert len(await world.mails()) == 10
    assert min(known + unknown) >= DEFAULT_INTERVAL - 0.01


async def test_a_template_that_fails_does_not_tell_either(world: World) -> None:
    await world.account("lost@mail.example", portal="nowhere")
    answer = await world.ask("lost@mail.example")
    assert (answer.status, len(answer.content)) == (202, len((await world.ask(NOBODY)).content))
    assert not await world.mails()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"email": ""},
        {"email": "no"},
        {"email": "a\0@b"},
        {"email": 7},
        {"email": ADA, "x": 1},
        [],
    ],
)
async def test_bad_bodies_are_refused(world: World, body: Any) -> None:
    answer = await world.backend.post("/sign-in", body)
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request")
    assert not await world.database.fetch("SELECT FROM pillarbox.challenges")


# --- whose accounts


async def test_only_the_tenant_of_the_accounts_may_ask(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    for client, status in ((world.api.shop, 403), (world.api.nobody, 401), (world.api.admin, 403)):
        assert (await client.post("/sign-in", {"email": ADA})).status == status
        refused = await client.post("/sign-in/verify", {"challenge": challenge, "code": code})
        assert refused.status == status
    reader = await world.api.key("default", Scope.READ)
    assert (await reader.post("/sign-in", {"email": ADA})).json["code"] == "scope"
    assert (await world.verify(code, challenge=challenge)).status == 200


async def test_the_tenants_limits_hold(world: World) -> None:
    """A mail that the tenant may not send is not sent, and that is not told to strangers."""
    await world.database.execute(
        "UPDATE pillarbox.tenants SET sender_domains = '{other.example}' WHERE name = 'default'"
    )
    assert (await world.ask()).status == 202
    assert not await world.mails()


async def test_without_accounts_it_says_what_to_do(api: Api) -> None:
    backend = await api.key("default", Scope.SEND)
    answer = await backend.post("/sign-in", {"email": ADA})
    assert (answer.status, answer.json["type"]) == (409, "/problems/not-possible")
    assert "migrate --with lifecycle" in answer.json["detail"]


async def test_a_schema_of_another_name(database_url: str) -> None:
    async with api_of(database_url, lifecycle_sender=SENDER, lifecycle_schema="people") as api:
        await install(api.database, "people")
        await new_account(api.database, "people", email=ADA, login="ada", status="active")
        world = World(api, await api.key("default", Scope.SEND))
        challenge = await world.challenge()
        assert (await world.verify(await world.code(), challenge=challenge)).status == 200


# --- tokens that ask for a code


async def collected(world: World, token: int, account: int) -> IssuedCode:
    """As the collector does it."""
    codes = await open_codes(world.database, world.api.app.settings)
    async with world.database.transaction() as connection:
        [made] = await codes.issue(connection, REALM, [CodeRequest(account, ADA, token, 300)])
    return made


async def test_a_tokens_code_is_verified_by_its_number(world: World) -> None:
    account = await world.database.fetchval("SELECT id FROM lifecycle.accounts")
    token = await TokenStore("lifecycle").issue(world.database, account, "sign_in_code")
    assert (await world.verify("123456", token=token)).json["void"] is True  # not mailed yet
    made = await collected(world, token, account)
    assert (await world.verify(wrong(made.code), token=token)).json["void"] is False
    answer = await world.verify(made.code, token=token)
    assert (answer.status, answer.json["account"]["email"]) == (200, ADA)
    assert (await world.verify(made.code, token=token)).status == 422


async def issued(world: World) -> int:
    """A sign-in token that an application inserted, and that the collector has seen."""
    app = world.api.app
    account = await world.database.fetchval(
        "SELECT id FROM lifecycle.accounts WHERE email = $1", ADA
    )
    token = await TokenStore("lifecycle").issue(world.database, account, "sign_in_code")
    with_keys = replace(
        app.settings, lifecycle_keys=load({}, overrides={"lifecycle_keys": KEY}).lifecycle_keys
    )
    collector = await LifecycleServices(
        app.database, with_keys, app.metrics, app.authenticator
    ).collector()
    await collector.run_once(asyncio.Event())
    return token


async def outcome(world: World, token: int) -> str:
    return str(
        await world.database.fetchval(
            "SELECT outcome FROM lifecycle.token_log WHERE id = $1", token
        )
    )


async def test_a_token_within_the_pause_gets_the_code_that_is_in_force(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    token = await issued(world)
    assert await outcome(world, token) == "paused"
    assert len(await world.mails()) == 1
    assert {
        row["state"] for row in await world.database.fetch("SELECT state FROM pillarbox.deliveries")
    } == {"queued"}
    assert (await world.verify(wrong(code), token=token)).json["void"] is False
    assert (await world.verify(code, token=token)).status == 200
    assert (await world.verify(code, challenge=challenge)).status == 422  # it counts once


async def test_tokens_pause_each_other_and_what_begins_by_http(world: World) -> None:
    first = await issued(world)
    code = await world.code()
    second = await issued(world)
    assert [await outcome(world, one) for one in (first, second)] == ["mailed", "paused"]
    challenge = await world.challenge()
    assert len(await world.mails()) == 1
    for which in ({"token": first}, {"token": second}, {"challenge": challenge}):
        assert (await world.verify(wrong(code), **which)).json["void"] is False
    assert (await world.verify(code, token=second)).status == 200
    third = await issued(world)  # after a code was used the next one need not wait
    assert await outcome(world, third) == "mailed"


async def test_after_the_pause_a_token_voids_the_older_code(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    await world.pass_time()
    token = await issued(world)
    assert await outcome(world, token) == "mailed"
    assert (await world.verify(code, challenge=challenge)).json["void"] is True
    assert (await world.verify(await world.code(), token=token)).status == 200


async def test_the_limit_of_a_day_holds_for_tokens(world: World) -> None:
    await world.challenge()
    await world.database.execute("UPDATE pillarbox.challenges SET tries = $1", WRONG_CODES_PER_DAY)
    await world.pass_time()
    assert await outcome(world, await issued(world)) == "paused"
    await world.pass_time("1 hour")
    assert await outcome(world, await issued(world)) == "mailed"


async def test_another_accounts_code_is_not_found_by_a_token(world: World) -> None:
    await world.account("bob@mail.example")
    await world.challenge("bob@mail.example")
    code = await world.code()
    token = await TokenStore("lifecycle").issue(
        world.database,
        await world.database.fetchval("SELECT min(id) FROM lifecycle.accounts"),
        "sign_in_code",
    )
    assert (await world.verify(code, token=token)).json["void"] is True


# --- keys


async def code_under(world: World, *keys: str) -> OneTimeCodes:
    given = load(
        {}, overrides={"database_url": "postgresql://unused", "secret_keys": ",".join(keys)}
    )
    return await open_codes(world.database, given)


async def test_a_reader_of_the_database_cannot_find_a_code(world: World) -> None:
    """All that is in the database hashes none of the million codes to what is kept."""
    await world.challenge()
    code = await world.code()
    row = await world.database.fetchrow("SELECT id, code_hash FROM pillarbox.challenges")
    key = await providers.redaction_key(world.database)
    known = [key, *(hmac.digest(key, b"pillarbox sign-in codes %d" % n, "sha256") for n in (1, 2))]
    assert row["code_hash"] not in {_hash_code(one, row["id"], code) for one in known}
    ring = EncryptionKeyRing([Secret(SECRET_KEY)]).derive(b"pillarbox sign-in codes 2")
    assert row["code_hash"] == _hash_code(ring[0], row["id"], code)


async def test_a_rotation_of_keys_voids_no_code_and_no_pause(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    rotated = await code_under(world, "22" * 32, SECRET_KEY)
    async with world.database.transaction() as connection:
        assert await rotated.paused(connection, REALM, [ADA, NOBODY]) == [True, False]
    with pytest.raises(WrongCode):
        await rotated.verify(world.database, REALM, challenge, wrong(code))
    assert (await rotated.verify(world.database, REALM, challenge, code)).used


async def test_without_the_key_a_code_does_not_count(world: World) -> None:
    challenge, code = await world.challenge(), await world.code()
    with pytest.raises(ForgedToken):
        await (await code_under(world, "22" * 32)).verify(world.database, REALM, challenge, code)


async def test_without_a_key_ring_nothing_begins(database_url: str) -> None:
    async with api_of(database_url, lifecycle_sender=SENDER, secret_keys=None) as api:
        await install(api.database)
        backend = await api.key("default", Scope.SEND)
        answer = await backend.post("/sign-in", {"email": ADA})
        assert (answer.status, answer.json["type"]) == (409, "/problems/not-possible")


async def test_python_clients_sign_in(world: World) -> None:
    sync = Client(world.backend.url, world.backend.key, retries=0)
    async with AsyncClient(world.backend.url, world.backend.key, retries=0) as client:
        begun = await client.begin_sign_in(ADA)
        assert (await asyncio.to_thread(sync.begin_sign_in, ADA)).challenge == begun.challenge
        assert begun.expires_in > 500
        code = await world.code()
        with pytest.raises(WrongCode) as told:
            await client.verify_sign_in(wrong(code), challenge=begun.challenge)
        assert not told.value.void
        account = await asyncio.to_thread(
            partial(sync.verify_sign_in, code, challenge=begun.challenge)
        )
        assert (account.email, account.status) == (ADA, "active")
        with pytest.raises(WrongCode) as told:
            await client.verify_sign_in(code, challenge=begun.challenge)
        assert told.value.void
        token = await issued(world)
        assert (await client.verify_sign_in(await world.code(), token=token)).login == "ada"
        with pytest.raises(ValueError, match="challenge or the id of a token"):
            await client.verify_sign_in(code)
    sync.close()


async def test_a_challenge_or_a_token_is_given(world: World) -> None:
    for which in (
        {},
        {"challenge": "x", "token": 1},
        {"token": 0},
        {"token": 2**63},
        {"token": "1; DROP"},
    ):
        assert (await world.verify("123456", **which)).json["type"] == "/problems/invalid-request"
