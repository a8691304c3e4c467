"""Administrators: a password, then a code by mail or a recovery code, then a session that ends when it must."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.accept.auth import PEER_FACTOR
from pillarbox.errors import NotFound, NotPossible, Unauthorized
from pillarbox.lifecycle import administrators
from pillarbox.lifecycle.administrators import LOGIN_INTERVAL, RECOVERY_CODES, Administrators
from pillarbox.model.access import Scope
from pillarbox.model.secret import Secret
from pillarbox.store import admins
from pillarbox.store.database import Database
from pillarbox.store.retention import purge
from tests.integration.api.api_helpers import Answer, Api, Client, api_of
from tests.integration.lifecycle.lifecycle_helpers import code_in, wrong

EMAIL, PASSWORD, OTHER = "Ada@example.com", "seven green chairs", "nine yellow tables"
SENDER = "Pillarbox <box@shop.example>"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers leave when they are ready: half a second each, where nobody measures it, would be most of these tests."""
    monkeypatch.setattr(administrators, "LOGIN_INTERVAL", 0.0)


@pytest.fixture
async def api(slow_api: Api, at_once: None) -> Api:
    return slow_api


@pytest.fixture
async def slow_api(database_url: str) -> AsyncIterator[Api]:
    async with api_of(database_url, lifecycle_sender=SENDER) as api:
        await ours(api).create(EMAIL, "Ada", Secret(PASSWORD))
        yield api


def ours(api: Api) -> Administrators:
    return api.app.lifecycle.administrators


async def login(api: Api, email: str = EMAIL, password: str = PASSWORD) -> Answer:
    return await api.nobody.post("/admin/login", {"email": email, "password": password})


async def verify(api: Api, challenge: str, **proof: str) -> Answer:
    return await api.nobody.post("/admin/verify", {"challenge": challenge, **proof})


async def mails(api: Api) -> list[Any]:
    query = "SELECT m.*, c.text, c.html FROM pillarbox.messages m LEFT JOIN pillarbox.contents c ON c.message_id = m.id"
    return await api.database.fetch(f"{query} WHERE m.kind = 'admin_sign_in_code' ORDER BY m.id")


async def newest_code(api: Api) -> str:
    return code_in((await mails(api))[-1]["text"])


async def challenged(api: Api, **given: str) -> str:
    answer = await login(api, **given)
    assert answer.status == 202, answer.content
    return str(answer.json["challenge"])


async def signed_in(api: Api) -> Client:
    answer = await verify(api, await challenged(api), code=await newest_code(api))
    assert answer.status == 200, answer.content
    return api.nobody.using(answer.json["session"])


async def is_let_in(client: Client) -> bool:
    answer = await client.get("/admin/tenants")
    assert answer.status in (200, 401)
    return answer.status == 200


async def as_if_later(api: Api) -> None:
    """The pause between two codes is over."""
    await api.database.execute(
        "UPDATE pillarbox.challenges SET created_at = created_at - interval '2 minutes'"
    )
    await api.database.execute(
        "UPDATE pillarbox.admins SET password_changed_at = password_changed_at - interval '3 minutes'"
    )


# --- getting in


async def test_password_then_code_then_session(api: Api) -> None:
    answer = await login(api)
    assert (answer.status, set(answer.json)) == (202, {"challenge", "expires_in"})
    assert answer.json["expires_in"] == 600
    [mail] = await mails(api)
    assert (mail["to"], mail["sender"], mail["class"], mail["lane"]) == (
        [EMAIL],
        SENDER,
        "lifecycle",
        0,
    )
    assert mail["expires_at"] - mail["created_at"] < timedelta(minutes=10, seconds=5)
    code = await newest_code(api)
    assert code in mail["html"]
    assert code not in mail["subject"]
    began = await verify(api, answer.json["challenge"], code=f"{code[:3]} {code[3:]}")
    assert (began.status, set(began.json)) == (200, {"session", "expires_at"})
    assert began.headers["cache-control"] == "no-store"
    assert re.fullmatch(r"pbs_[A-Za-z0-9]{43}", began.json["session"])
    session = api.nobody.using(began.json["session"])
    assert (await session.get("/admin/tenants")).status == 200
    assert (await session.get("/admin/keys")).status == 200
    assert (await admins.get(api.database, EMAIL)).last_login_at is not None


async def test_addresses_have_no_case(api: Api) -> None:
    assert (await login(api, "ADA@EXAMPLE.COM")).status == 202
    with pytest.raises(NotPossible, match="already"):
        await ours(api).create(EMAIL.lower(), None, Secret(PASSWORD))


async def test_before_verification_nothing_works(api: Api) -> None:
    challenge = await challenged(api)
    for token in (challenge, f"pbs_{challenge}", f"pbs_{'a' * 43}", "pbs_", await newest_code(api)):
        assert (await api.nobody.using(token).get("/admin/tenants")).status == 401
    assert not await api.database.fetch("SELECT FROM pillarbox.admin_sessions")


async def test_nothing_of_it_is_kept_in_the_clear(api: Api) -> None:
    session = await signed_in(api)
    code = await newest_code(api)
    [recovery, *_] = await ours(api).new_recovery_codes(EMAIL)
    for table in ("challenges", "admins", "admin_sessions", "admin_recovery_codes"):
        kept = str(await api.database.fetch(f"SELECT t::text FROM pillarbox.{table} t"))
        secrets = (session.key, PASSWORD, recovery.reveal(), recovery.reveal().replace("-", ""))
        assert not [one for one in secrets if one and (one in kept or one.encode().hex() in kept)]
        assert table == "admins" or EMAIL.lower() not in kept.lower()
    row = await api.database.fetchrow("SELECT code_hash, asked FROM pillarbox.challenges")
    assert row is not None
    assert len(row["code_hash"]) == len(row["asked"]) == 32
    assert code.encode() not in row["code_hash"]


# --- who does not


async def test_every_refusal_is_the_same_answer(api: Api) -> None:
    await ours(api).create("gone@example.com", None, Secret(PASSWORD))
    await ours(api).disable("gone@example.com")
    answers = [
        await login(api, EMAIL, OTHER),
        await login(api, "nobody@example.com", PASSWORD),
        await login(api, "gone@example.com", PASSWORD),
        await login(api, "gone@example.com", OTHER),
    ]
    assert {(one.status, one.content) for one in answers} == {(401, answers[0].content)}
    assert answers[0].json["type"] == "/problems/wrong-password"
    drop = {"Date"}
    assert (
        len({str({k: v for k, v in one.headers.items() if k not in drop}) for one in answers}) == 1
    )
    assert not await mails(api)
    assert not await api.database.fetch("SELECT FROM pillarbox.challenges")


async def test_every_refusal_takes_as_long(slow_api: Api) -> None:
    api = slow_api
    await login(api)  # what is made at first use

    async def taken(email: str) -> float:
        begun = time.perf_counter()
        assert (await login(api, email, OTHER)).status == 401
        return time.perf_counter() - begun

    known = [await taken(EMAIL) for _ in range(3)]
    unknown = [await taken(f"nobody{n}@example.com") for n in range(3)]
    assert min(known + unknown) >= LOGIN_INTERVAL - 0.01


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"email": EMAIL},
        {"email": EMAIL, "password": ""},
        {"email": EMAIL, "password": "x" * 257},
        {"email": "no address", "password": PASSWORD},
        {"email": "a\0@b.example", "password": PASSWORD},
        {"email": EMAIL, "password": PASSWORD, "admin": True},
        {"email": [EMAIL], "password": PASSWORD},
    ],
)
async def test_bad_bodies_are_refused(api: Api, body: dict[str, Any]) -> None:
    answer = await api.nobody.post("/admin/login", body)
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request")
    assert PASSWORD.encode() not in answer.content


@pytest.mark.parametrize(
    "code", ["", "12345", "1234567", "12345a", "１２３４５６", "123456 or 1=1"]
)
async def test_what_cannot_be_a_code_is_no_try(api: Api, code: str) -> None:
    answer = await verify(api, await challenged(api), code=code)
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request")
    assert await api.database.fetchval("SELECT tries FROM pillarbox.challenges") == 0


async def test_one_proof_is_given(api: Api) -> None:
    challenge = await challenged(api)
    for more in ({}, {"code": "123456", "recovery_code": "x"}):
        assert (await verify(api, challenge, **more)).json["type"] == "/problems/invalid-request"


async def test_whoever_fails_too_often_waits(database_url: str) -> None:
    async with api_of(database_url, lifecycle_sender=SENDER, auth_failures_per_minute=3) as api:
        await ours(api).create(EMAIL, None, Secret(PASSWORD))
        answers = [(await login(api, EMAIL, OTHER)).status for _ in range(4)]
        assert answers == [401, 401, 401, 429]
        refused = await login(api)
        assert (refused.status, "Retry-After" in refused.headers) == (
            429,
            True,
        )  # the right one waits, too
        assert (
            await login(api, "nobody@example.com", OTHER)
        ).status == 401  # another address does not


async def test_many_at_once_are_not_all_compared(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_of(database_url, auth_failures_per_minute=3) as api:
        await ours(api).create(EMAIL, None, Secret(PASSWORD))
        compared, real = [], ours(api)._passwords._matches
        monkeypatch.setattr(
            ours(api)._passwords,
            "_matches",
            lambda *given: compared.append(1) is None and real(*given),
        )
        answers = await asyncio.gather(*(login(api, EMAIL, OTHER) for _ in range(20)))
        assert {one.status for one in answers} == {401, 429}
        assert (
            len(compared) <= 3 + 2
        )  # as many as may fail, and those that ran beside the last of them


async def test_wrong_passwords_count_with_wrong_keys_of_the_same_peer(api: Api) -> None:
    keeper = api.app.authenticator
    most = api.app.settings.auth_failures_per_minute * PEER_FACTOR
    for n in range(most):
        await keeper.refuse("password", "127.0.0.1", f"{n}@example.com")
    assert (await login(api)).status == 429
    assert (await api.nobody.using(f"pbx_{'a' * 10}_{'a' * 43}").get("/messages")).status == 429


# --- codes


async def test_wrong_codes_end_a_challenge(api: Api) -> None:
    challenge = await challenged(api)
    code = await newest_code(api)
    answers = [await verify(api, challenge, code=wrong(code)) for _ in range(5)]
    assert [(one.status, one.json["type"], one.json["void"]) for one in answers] == [
        (422, "/problems/code", void) for void in (False, False, False, False, True)
    ]
    assert (await verify(api, challenge, code=code)).json["void"] is True
    assert not await api.database.fetch("SELECT FROM pillarbox.admin_sessions")


async def test_the_fifth_try_may_be_right(api: Api) -> None:
    challenge = await challenged(api)
    code = await newest_code(api)
    for _ in range(4):
        await verify(api, challenge, code=wrong(code))
    assert (await verify(api, challenge, code=code)).status == 200


async def test_a_code_counts_once(api: Api) -> None:
    challenge = await challenged(api)
    code = await newest_code(api)
    answers = await asyncio.gather(*(verify(api, challenge, code=code) for _ in range(10)))
    assert sorted(one.status for one in answers) == [200, *[422] * 9]
    assert await api.database.fetchval("SELECT count(*) FROM pillarbox.admin_sessions") == 1


async def test_a_code_expires(api: Api) -> None:
    challenge = await challenged(api)
    await api.database.execute("UPDATE pillarbox.challenges SET expires_at = now()")
    answer = await verify(api, challenge, code=await newest_code(api))
    assert (answer.status, answer.json["void"]) == (422, True)


async def test_a_challenge_of_an_account_is_no_administrators(api: Api) -> None:
    challenge = await challenged(api)
    await api.database.execute("UPDATE pillarbox.challenges SET realm = 'accounts:lifecycle'")
    assert (await verify(api, challenge, code=await newest_code(api))).status == 422


async def test_asking_twice_mails_once(api: Api) -> None:
    first = await challenged(api)
    answers = await asyncio.gather(*(login(api) for _ in range(5)))
    assert {one.json["challenge"] for one in answers} == {first}
    assert len(await mails(api)) == 1


async def test_a_new_code_takes_the_place_of_the_old(api: Api) -> None:
    old, old_code = await challenged(api), await newest_code(api)
    await as_if_later(api)
    new = await challenged(api)
    assert new != old
    assert (await verify(api, old, code=old_code)).json["void"] is True
    [first, second] = await mails(api)
    states = dict(
        await api.database.fetch("SELECT message_id, state::text FROM pillarbox.deliveries")
    )
    assert (states[first["id"]], states[second["id"]]) == ("cancelled", "queued")
    assert first["text"] is None  # its code is nowhere any more
    assert (await verify(api, new, code=await newest_code(api))).status == 200


async def test_after_signing_in_one_may_ask_again_at_once(api: Api) -> None:
    await signed_in(api)
    await signed_in(api)
    assert len(await mails(api)) == 2


async def test_a_mail_that_cannot_be_made_stops_nobody_with_a_recovery_code(
    database_url: str,
) -> None:
    async with api_of(database_url, development="off") as api:  # no sender
        await ours(api).create(EMAIL, None, Secret(PASSWORD))
        [code, *_] = await ours(api).new_recovery_codes(EMAIL)
        challenge = await challenged(api)
        assert not await mails(api)
        assert (await verify(api, challenge, recovery_code=code.reveal())).status == 200


# --- recovery codes


async def test_a_recovery_code_counts_once(api: Api) -> None:
    codes = await ours(api).new_recovery_codes(EMAIL)
    assert len({one.reveal() for one in codes}) == RECOVERY_CODES
    assert all(re.fullmatch(r"([2-9a-z]{4}-){3}[2-9a-z]{4}", one.reveal()) for one in codes)
    first, second = codes[0].reveal(), codes[1].reveal().upper().replace("-", " ")
    challenge = await challenged(api)
    began = await verify(api, challenge, recovery_code=first)
    assert (began.status, await is_let_in(api.nobody.using(began.json["session"]))) == (200, True)
    assert (await verify(api, challenge, recovery_code=second)).json[
        "void"
    ] is True  # the challenge is used
    challenge = await challenged(api)
    assert (await verify(api, challenge, recovery_code=first)).status == 422
    assert (await verify(api, challenge, recovery_code=second)).status == 200
    [listed] = await admins.list_all(api.database)
    assert listed.recovery_codes == RECOVERY_CODES - 2


async def test_one_recovery_code_at_two_doors_opens_one(api: Api) -> None:
    [code, *_] = await ours(api).new_recovery_codes(EMAIL)
    first = await challenged(api)
    await as_if_later(api)
    await api.database.execute(
        "UPDATE pillarbox.challenges SET subject = NULL"
    )  # so that the first stays in force
    second = await challenged(api)
    await api.database.execute("UPDATE pillarbox.challenges SET subject = 1, void = false")
    answers = await asyncio.gather(
        *(verify(api, one, recovery_code=code.reveal()) for one in (first, second) * 5)
    )
    assert sorted(one.status for one in answers) == [200, *[422] * 9]


async def test_wrong_recovery_codes_are_tries(api: Api) -> None:
    [code, *_] = await ours(api).new_recovery_codes(EMAIL)
    challenge = await challenged(api)
    answers = [await verify(api, challenge, recovery_code="2222-2222-2222-2222") for _ in range(5)]
    assert [one.json["void"] for one in answers] == [False, False, False, False, True]
    assert (await verify(api, challenge, recovery_code=code.reveal())).status == 422


async def test_the_last_try_may_be_a_right_recovery_code(api: Api) -> None:
    [code, *_] = await ours(api).new_recovery_codes(EMAIL)
    challenge = await challenged(api)
    for _ in range(4):
        await verify(api, challenge, code=wrong(await newest_code(api)))
    assert (await verify(api, challenge, recovery_code=code.reveal())).status == 200


async def test_new_recovery_codes_void_the_old(api: Api) -> None:
    [old, *_] = await ours(api).new_recovery_codes(EMAIL)
    await ours(api).new_recovery_codes(EMAIL)
    assert (await verify(api, await challenged(api), recovery_code=old.reveal())).status == 422


async def test_recovery_codes_are_of_one_administrator(api: Api) -> None:
    await ours(api).create("bob@example.com", None, Secret(PASSWORD))
    [code, *_] = await ours(api).new_recovery_codes("bob@example.com")
    assert (await verify(api, await challenged(api), recovery_code=code.reveal())).status == 422


# --- sessions


async def test_a_session_is_no_key_of_a_tenant(api: Api) -> None:
    session = await signed_in(api)
    for path in ("/messages", "/keys", "/suppressions", "/dlq", "/webhooks"):
        assert (await session.get(path)).json["type"] == "/problems/not-allowed"
    assert (await session.send()).status == 403
    who = (await admins.find_sessions(api.database, [session.key or ""]))[0]
    assert who is not None
    assert (who.kind, who.name, who.tenant, who.scopes) == (
        "session",
        "Ada",
        None,
        frozenset({Scope.ADMIN}),
    )


async def end_by_logout(api: Api, session: Client) -> None:
    assert (await session.post("/admin/logout")).status == 204


async def end_by_password(api: Api, session: Client) -> None:
    await ours(api).change_password(EMAIL, Secret(OTHER))


async def end_by_disabling(api: Api, session: Client) -> None:
    await ours(api).disable(EMAIL)


async def end_by_time(api: Api, session: Client) -> None:
    await api.database.execute("UPDATE pillarbox.admin_sessions SET expires_at = now()")


ENDS = [end_by_logout, end_by_password, end_by_disabling, end_by_time]


@pytest.mark.parametrize("end", ENDS, ids=lambda one: one.__name__)
async def test_a_session_ends_at_once(
    api: Api, end: Callable[[Api, Client], Awaitable[None]]
) -> None:
    session = await signed_in(api)
    assert [await is_let_in(session) for _ in range(3)] == [True] * 3
    await end(api, session)
    assert not await is_let_in(session)
    assert (await session.post("/admin/logout")).status == 401


async def test_logging_out_ends_one_session(api: Api) -> None:
    first, second = await signed_in(api), await signed_in(api)
    await end_by_logout(api, first)
    assert [await is_let_in(first), await is_let_in(second)] == [False, True]


async def test_a_key_cannot_log_out(api: Api) -> None:
    answer = await api.admin.post("/admin/logout")
    assert (answer.status, answer.json["type"]) == (409, "/problems/not-possible")
    assert (await api.shop.post("/admin/logout")).status == 403


@pytest.mark.parametrize("end", [end_by_password, end_by_disabling], ids=lambda one: one.__name__)
async def test_codes_on_their_way_end_with_the_sessions(
    api: Api, end: Callable[[Api, Client], Awaitable[None]]
) -> None:
    [recovery, *_] = await ours(api).new_recovery_codes(EMAIL)
    challenge, code = await challenged(api), await newest_code(api)
    await end(api, api.nobody)
    assert (await verify(api, challenge, code=code)).json["void"] is True
    assert (await verify(api, challenge, recovery_code=recovery.reveal())).status == 422
    assert (
        await api.database.fetchval("SELECT state::text FROM pillarbox.deliveries") == "cancelled"
    )
    await ours(api).enable(EMAIL)
    assert (await verify(api, challenge, code=code)).json["void"] is True


async def test_a_challenge_of_before_the_change_begins_no_session(api: Api) -> None:
    """Also where the change comes between the code and the session."""
    challenge = await challenged(api)
    await api.database.execute(
        "UPDATE pillarbox.admins SET password_changed_at = clock_timestamp()"
    )
    assert (await verify(api, challenge, code=await newest_code(api))).json["void"] is True
    assert not await api.database.fetch("SELECT FROM pillarbox.admin_sessions")


async def test_a_password_that_changes_while_it_is_compared_is_not_right(api: Api) -> None:
    real = ours(api)._verify_password

    async def slow(*given: str) -> Any:
        kept = await real(*given)
        await ours(api).change_password(EMAIL, Secret(OTHER))
        return kept

    ours(api)._verify_password = slow  # type: ignore[method-assign]
    with pytest.raises(Unauthorized):
        await ours(api).login(EMAIL, PASSWORD, "192.0.2.1")
    assert not await mails(api)


async def test_after_a_change_the_new_password_gets_in(api: Api) -> None:
    await ours(api).change_password(EMAIL, Secret(OTHER))
    assert (await login(api)).status == 401
    assert (await login(api, EMAIL, OTHER)).status == 202


async def test_whoever_is_enabled_again_gets_in(api: Api) -> None:
    await ours(api).disable(EMAIL)
    assert (await login(api)).status == 401
    with pytest.raises(NotPossible, match="disabled"):
        await ours(api).sign_in_here(EMAIL)
    await ours(api).enable(EMAIL)
    assert await is_let_in(await signed_in(api))


async def test_this_machine_gets_an_administrator_in(api: Api) -> None:
    session = await ours(api).sign_in_here(EMAIL)
    assert await is_let_in(api.nobody.using(session.secret.reveal()))
    with pytest.raises(NotFound):
        await ours(api).sign_in_here("nobody@example.com")


async def test_guessed_sessions_are_throttled(database_url: str) -> None:
    async with api_of(database_url, auth_failures_per_minute=2) as api:
        await ours(api).create(EMAIL, None, Secret(PASSWORD))
        session = api.nobody.using((await ours(api).sign_in_here(EMAIL)).secret.reveal())
        assert await is_let_in(session)
        answers = [
            (await api.nobody.using(f"pbs_{n:043}").get("/admin/tenants")).status for n in range(25)
        ]
        assert set(answers[:20]) == {401}
        assert set(answers[20:]) == {429}
        assert await is_let_in(session)  # which was right before


# --- what is refused when somebody is made


@pytest.mark.parametrize(
    "email", ["", "ada", "Ada <ada@example.com>", "a@b\n", "a@b, c@d", "x" * 320 + "@b.example"]
)
async def test_only_addresses_are_taken(api: Api, email: str) -> None:
    with pytest.raises(Exception, match="not a legal e-mail address"):
        await ours(api).create(email, None, Secret(PASSWORD))


async def test_easy_passwords_are_refused(api: Api) -> None:
    for password in ("short", "password1234", "bob@example.com"):
        with pytest.raises(NotPossible):
            await ours(api).create("bob@example.com", None, Secret(password))
        with pytest.raises(NotPossible):
            await ours(api).change_password(
                EMAIL, Secret("Ada@example.com" if "@" in password else password)
            )
    assert len(await admins.list_all(api.database)) == 1


# --- retention


async def test_what_is_over_is_dropped(api: Api, database: Database) -> None:
    session = await signed_in(api)
    assert await purge(database, None, None, 10) == {}
    await database.execute(
        "UPDATE pillarbox.challenges SET expires_at = now() - interval '25 hours'"
    )
    await database.execute(
        "UPDATE pillarbox.admin_sessions SET expires_at = now() - interval '25 hours'"
    )
    await database.execute(
        "INSERT INTO pillarbox.challenges (id, realm, asked, code_hash, expires_at)"
        " SELECT gen_random_uuid(), 'admin', '', '', now() - interval '2 days' FROM generate_series(1, 25)"
    )
    assert await purge(database, None, None, 10) == {"challenges": 26, "sessions": 1}
    assert not await is_let_in(session)
