"""Links in mails of accounts, over HTTP: looking changes nothing, using counts once, and nothing else counts at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from pillarbox.lifecycle import signing
from pillarbox.lifecycle.account_links import MAX_TRIES
from tests.integration.lifecycle.lifecycle_helpers import KEY, wrong
from tests.integration.lifecycle.link_helpers import OLD_KEY, PATHS, Link, Town, recovering, town_of


@pytest.fixture
async def town(database_url: str) -> AsyncIterator[Town]:
    async with town_of(database_url) as town:
        yield town


# --- looking and using


async def test_a_person_activates_an_account(town: Town) -> None:
    link = await town.link(await town.account("ada", name="Ada Lovelace"))
    page = await town.open(link)
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    for words in (
        "Activate your account",
        "Hello Ada Lovelace,",
        'action="activate"',
        link.token,
        link.expires,
        "Hub",
    ):
        assert words in page.text, words
    assert await town.status(link.account) == "provisioned"
    done = await town.submit(link)
    assert done.status == 200
    assert "Your account is active" in done.text
    assert await town.status(link.account) == "active"


async def test_a_program_uses_a_link(town: Town) -> None:
    link = await town.link(await town.account("ada"))
    answer = await town.use(link)
    assert answer.status == 200
    assert answer.json == {
        "account": {"id": link.account, "login": "ada", "status": "active"},
        "action": "activation",
    }
    again = await town.use(link)
    assert again.reason == "used"


async def test_a_program_looks(town: Town) -> None:
    link = await recovering(town)
    before = await town.snapshot()
    answer = await town.ask("GET", link.address, headers={"Accept": "application/json"})
    assert answer.status == 200
    assert answer.json["account"] == {"id": link.account, "login": "ada"}
    assert (answer.json["action"], answer.json["with_code"]) == ("password_recovery", True)
    assert abs(answer.json["expires_at"] - time.time() - 900) < 60
    assert await town.snapshot() == before


async def test_recovery_asks_for_the_code(town: Town) -> None:
    link = await recovering(town)
    page = await town.open(link)
    assert 'name="code"' in page.text
    assert link.code not in page.text
    once_more = await town.submit(link, code=wrong(link.code))
    assert once_more.status == 422
    assert "That is not the code" in once_more.text
    assert 'name="code"' in once_more.text
    done = await town.submit(link, code=f" {link.code[:2]} {link.code[2:]} ")
    assert done.status == 200
    assert await town.consumed(link)


@pytest.mark.parametrize("action", ["email_verification", "invite"])
async def test_the_other_actions(town: Town, action: str) -> None:
    link = await town.link(await town.account(), action)
    assert (await town.open(link)).status == 200
    answer = await town.use(link)
    assert answer.json["account"]["status"] == ("active" if action == "invite" else "provisioned")
    assert await town.consumed(link)


async def test_looking_changes_nothing_however_often(town: Town) -> None:
    """Scanners open every link of a mail, some of them many times, and some ask for the head alone."""
    links = [await town.link(await town.account()), await recovering(town, "bo")]
    before = await town.snapshot()
    scanner = {"User-Agent": "Mozilla/5.0 (compatible; MailScanner/1.0)", "Sec-Purpose": "prefetch"}
    for link in links:
        for method in ("GET", "HEAD", "OPTIONS"):
            answers = await asyncio.gather(
                *(
                    town.ask(method, link.address, headers=scanner)
                    for _ in range(100 if method == "GET" else 10)
                )
            )
            assert {answer.status for answer in answers} == {204 if method == "OPTIONS" else 200}
    assert await town.snapshot() == before
    assert (await town.use(links[0])).status == 200
    assert (await town.use(links[1], code=links[1].code)).status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
async def test_other_methods_are_not_allowed(town: Town, method: str) -> None:
    link = await town.link(await town.account())
    answer = await town.ask(method, link.address)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST, OPTIONS")
    assert not await town.consumed(link)


async def test_a_post_without_a_body_uses_nothing(town: Town) -> None:
    """The link alone is what scanners have; the form's fields come from a press of the button."""
    link = await town.link(await town.account())
    assert (await town.ask("POST", link.address)).status == 415
    assert (
        await town.ask("POST", link.address, data={"x": "y"}, headers={"Accept": "text/html"})
    ).status == 422
    assert (await town.ask("POST", link.address, json={})).json[
        "type"
    ] == "/problems/invalid-request"
    assert not await town.consumed(link)


async def test_of_many_at_once_one_wins(town: Town) -> None:
    link = await town.link(await town.account())
    answers = await asyncio.gather(*(town.use(link) for _ in range(10)))
    assert sorted(answer.status for answer in answers) == [200] + [422] * 9
    assert {answer.reason for answer in answers if answer.status != 200} == {"used"}


# --- what does not count


async def test_the_second_press_says_that_it_was_used(town: Town) -> None:
    link = await town.link(await town.account())
    await town.submit(link)
    for answer in (await town.submit(link), await town.open(link)):
        assert answer.status == 422
        assert "This link was used before" in answer.text
        assert "Hub" in answer.text


def forgeries(link: Link, other: Link) -> dict[str, Link]:
    """Links that we did not make."""
    flipped = "B" if link.token[0] != "B" else "C"
    end = "B" if link.token[-2] != "B" else "C"
    return {
        "another secret": link._replace(token=flipped + link.token[1:]),
        "another signature": link._replace(token=link.token[:-2] + end + link.token[-1]),
        "cut off": link._replace(token=link.token[:-1]),
        "too long": link._replace(token=link.token + "A"),
        "empty": link._replace(token=""),
        "not base64": link._replace(token="!" * 86),
        "not ASCII": link._replace(token="ä" * 86),
        "another link's token": link._replace(token=other.token),
        "another link's expiry": link._replace(expires=other.expires),
        "another expiry": link._replace(
            expires=("B" if link.expires[0] != "B" else "C") + link.expires[1:]
        ),
        "expiry cut off": link._replace(expires=link.expires[:-1]),
        "expiry empty": link._replace(expires=""),
    }


@pytest.mark.parametrize("action", ["activation", "password_recovery"])
async def test_forged_links(town: Town, action: str) -> None:
    status = "provisioned" if action == "activation" else "active"
    link, other = [
        await town.link(await town.account(login, status=status), action) for login in ("ada", "bo")
    ]
    before = await town.snapshot()
    for name, forged in forgeries(link, other).items():
        shown = await town.open(forged)
        assert shown.status == 422, name
        assert "This link is not valid" in shown.text, name
        assert "Hub" not in shown.text, name  # neutral: nothing is said about any account
        assert (await town.use(forged, code=link.code)).reason == "forged", name
    assert await town.snapshot() == before


async def test_a_link_works_only_at_its_own_path(town: Town) -> None:
    account = await town.account()
    links = {
        link.path: link
        for link in [await town.link(account), await town.link(account, "email_verification")]
    }
    await town.database.execute(
        "UPDATE lifecycle.accounts SET status = 'active' WHERE id = $1", account
    )
    links |= {"/recover": await town.link(account, "password_recovery")}
    before = await town.snapshot()
    for link in links.values():
        for path in PATHS:
            if path != link.path:
                assert (await town.use(link, path=path, code=link.code)).reason == "forged", (
                    link.path,
                    path,
                )
                assert (
                    await town.open(f"{path}?token={link.token}&expires={link.expires}")
                ).status == 422
    assert await town.snapshot() == before


async def test_another_key_counts_for_nothing(town: Town) -> None:
    link = await town.link(await town.account(), key=OLD_KEY)
    assert (await town.use(link)).reason == "forged"
    assert not await town.consumed(link)


@pytest.mark.parametrize(("days", "counts"), [(1, True), (0, False), (-1, False)])
async def test_an_old_key_counts_until_it_retires(
    database_url: str, days: int, counts: bool
) -> None:
    day = datetime.now(UTC).date() + timedelta(days=days)
    async with town_of(database_url, lifecycle_keys=f"{KEY},{OLD_KEY}@{day}") as town:
        for login, action, status in (
            ("ada", "activation", "provisioned"),
            ("bo", "password_recovery", "active"),
        ):
            link = await town.link(await town.account(login, status=status), action, key=OLD_KEY)
            assert (await town.open(link)).status == (200 if counts else 422)
            answer = await town.use(link, code=link.code)
            assert answer.status == 200 if counts else answer.reason == "forged"
            assert await town.consumed(link) is counts


async def test_expired_is_told_from_forged_without_the_database(town: Town) -> None:
    link = await town.link(await town.account())
    late = link._replace(
        expires=signing.sign_expiry(link.token, int(time.time()) - 1, bytes.fromhex(KEY))
    )
    forged = link._replace(
        expires=signing.sign_expiry(link.token, int(time.time()) - 1, bytes.fromhex(OLD_KEY))
    )
    await town.open(link)  # the paths are known from now on
    await town.app.database.close()
    shown = await town.open(late)
    assert shown.status == 422
    assert "This link has expired" in shown.text
    assert (await town.use(late)).reason == "expired"
    assert (await town.use(forged)).reason == "forged"
    away = await town.open(link)
    assert (away.status, away.headers["retry-after"]) == (503, "5")
    assert "We cannot check this now" in away.text
    assert (await town.use(link)).json["type"] == "/problems/store-away"


async def test_the_database_has_the_last_word_about_expiry(town: Town) -> None:
    link = await town.link(await town.account())
    await town.expire(link)
    assert "This link has expired" in (await town.open(link)).text
    assert (await town.use(link)).reason == "expired"
    assert await town.status(link.account) == "provisioned"


async def test_a_newer_link_takes_its_place(town: Town) -> None:
    account = await town.account(status="active")
    old = await town.link(account, "password_recovery")
    new = await town.link(account, "password_recovery")
    assert "There is a newer link" in (await town.open(old)).text
    assert (await town.use(old, code=old.code)).reason == "superseded"
    assert (await town.use(new, code=new.code)).status == 200


async def test_nothing_is_behind_the_link_of_a_deleted_account(town: Town) -> None:
    link = await town.link(await town.account())
    await town.database.execute("DELETE FROM lifecycle.accounts")
    assert (await town.open(link)).status == 422
    assert (await town.use(link)).reason == "forged"


async def test_the_link_of_a_suspended_account_is_kept_for_later(town: Town) -> None:
    link = await town.link(await town.account())
    await town.database.execute("UPDATE lifecycle.accounts SET status = 'suspended'")
    assert "Your account is suspended" in (await town.open(link)).text
    assert (await town.submit(link)).status == 422
    assert (await town.use(link)).reason == "suspended"
    assert not await town.consumed(link)
    await town.database.execute("UPDATE lifecycle.accounts SET status = 'active'")
    assert (await town.use(link)).json["account"]["status"] == "active"


# --- codes


async def test_five_wrong_codes_void_the_link(town: Town) -> None:
    link = await recovering(town)
    reasons = [
        (await town.use(link, code=wrong(link.code, by))).reason for by in range(1, MAX_TRIES + 1)
    ]
    assert set(reasons[:-1]) == {"wrong_code"}
    assert (await town.use(link, code=link.code)).reason == "void"
    assert "Too many wrong codes" in (await town.open(link)).text
    assert "Too many wrong codes" in (await town.submit(link, code=link.code)).text
    assert not await town.consumed(link)
    fresh = await town.link(link.account, "password_recovery")
    assert (await town.use(fresh, code=fresh.code)).status == 200


async def test_guesses_at_once_are_no_more_than_five(town: Town) -> None:
    link = await recovering(town)
    guesses = [wrong(link.code, by) for by in range(1, 50)]
    answers = await asyncio.gather(*(town.use(link, code=guess) for guess in guesses))
    assert {answer.reason for answer in answers} <= {"wrong_code", "void"}
    assert sum(answer.reason == "wrong_code" for answer in answers) <= MAX_TRIES
    assert (await town.use(link, code=link.code)).reason == "void"


@pytest.mark.parametrize(
    "code", ["", "1", "123456", "abcde", "００００１", "<b>xy", "\x00\x00\x00\x00\x00", None]
)
async def test_what_is_no_code_is_a_wrong_one(town: Town, code: str | None) -> None:
    link = await recovering(town)
    assert (await town.use(link, code=code)).reason == "wrong_code"
    assert (await town.use(link, code=link.code)).status == 200


async def test_the_code_of_the_database_without_its_signature_is_wrong(town: Town) -> None:
    """Whoever can write the code into the table but does not know the key cannot make a link count."""
    link = await recovering(town)
    other = wrong(link.code)
    await town.database.execute(
        "UPDATE lifecycle.tokens SET code = $1 WHERE id = $2", other, link.id
    )
    assert (await town.use(link, code=other)).reason == "wrong_code"
    assert (await town.use(link, code=link.code)).reason == "wrong_code"


# --- links of the original collector have no expiry


@pytest.mark.parametrize("action", ["activation", "password_recovery"])
async def test_without_an_expiry_the_database_decides(town: Town, action: str) -> None:
    status = "provisioned" if action == "activation" else "active"
    link, late = [
        await town.link(await town.account(login, status=status), action) for login in ("ada", "bo")
    ]
    await town.expire(late)
    assert (await town.open(f"{link.path}?token={link.token}")).status == 200
    assert (await town.use(late, expires=None, code=late.code)).reason == "expired"
    assert (await town.use(link, expires=None, code=link.code)).status == 200


# --- who fails too often


async def test_forged_links_are_throttled_and_good_ones_are_not(database_url: str) -> None:
    async with town_of(database_url, auth_failures_per_minute=1) as town:  # ten from one address
        link, recovery = await town.link(await town.account()), await recovering(town, "bo")
        forged = link._replace(token="A" * 86)
        answers = [await town.use(forged) for _ in range(12)]
        assert [answer.status for answer in answers] == [422] * 10 + [429] * 2
        assert answers[-1].json["type"] == "/problems/throttled"
        assert 0 < int(answers[-1].headers["retry-after"]) <= 60
        shown = await town.open(forged)
        assert shown.status == 429
        assert "Too many tries" in shown.text
        # Without its expiry nothing proves that a link with a code is ours: it waits, before its
        # code is looked at.
        assert (await town.use(recovery, expires=None, code=recovery.code)).status == 429
        # Strangers behind the same address lock nobody out.
        assert (await town.use(link)).status == 200
        assert (await town.use(recovery, code=wrong(recovery.code))).reason == "wrong_code"
        assert (await town.use(recovery, code=recovery.code)).status == 200
