"""The pages behind links as people meet them: Chromium, a phone's width, no JavaScript."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from tests.integration.lifecycle.link_helpers import Link, Town, town_of

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
PHONE = {"width": 375, "height": 667}
HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>"

pytestmark = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"Chromium is not installed ({CHROMIUM})"
)


@pytest.fixture
async def town(database_url: str) -> AsyncIterator[Town]:
    async with town_of(database_url) as town:
        yield town


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest.fixture
async def phone(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A person's browser: small, without scripts; every complaint of its own about a page fails the test."""
    context = await browser.new_context(java_script_enabled=False, viewport=PHONE, locale="en-GB")  # type: ignore[arg-type]
    complaints: list[str] = []
    context.on("console", lambda message: complaints.append(message.text))
    context.on(
        "requestfailed", lambda request: complaints.append(f"{request.url}: {request.failure}")
    )
    yield context
    await context.close()
    assert [one for one in complaints if "422" not in one] == []


async def opened(context: BrowserContext, town: Town, link: Link) -> Page:
    page = await context.new_page()
    await page.goto(f"{town.url}{link.address}")
    return page


async def heading(page: Page) -> str:
    return await page.locator("h1").inner_text()


async def test_activating(phone: BrowserContext, town: Town) -> None:
    link = await town.link(await town.account("ada", name="Ada"))
    page = await opened(phone, town, link)
    assert await page.title() == "Activate your account · Hub"
    await page.get_by_role("button", name="Activate account").click()
    assert await heading(page) == "Your account is active"
    assert page.url == f"{town.url}/activate", (
        "the link is not in the history of the page that follows"
    )
    assert await town.status(link.account) == "active"
    await page.goto(f"{town.url}{link.address}")
    assert await heading(page) == "This link was used before"


async def test_going_back_and_pressing_again(phone: BrowserContext, town: Town) -> None:
    link = await town.link(await town.account())
    page = await opened(phone, town, link)
    await page.get_by_role("button").click()
    await page.go_back()
    assert await heading(page) == "This link was used before"


async def test_recovering_with_a_code(phone: BrowserContext, town: Town) -> None:
    link = await town.link(await town.account("ada", status="active"), "password_recovery")
    page = await opened(phone, town, link)
    assert await heading(page) == "Reset your password"
    field = page.get_by_label("Code")
    await field.fill("12")
    await page.get_by_role("button").click()
    assert await heading(page) == "Reset your password"
    assert await page.get_by_role("alert").count() == 0, "the browser itself refused to send it"
    await field.fill(f"{(int(link.code) + 1) % 100_000:05}")
    await page.get_by_role("button").click()
    assert "not the code" in await page.get_by_role("alert").inner_text()
    assert await page.locator("input[name=code]").input_value() == ""
    await page.get_by_label("Code").fill(f"{link.code[:3]} {link.code[3:]}")
    await page.get_by_role("button").click()
    assert await heading(page) == "Thank you, it is you"
    assert await town.consumed(link)


async def test_the_code_by_keyboard_alone(phone: BrowserContext, town: Town) -> None:
    link = await town.link(await town.account("ada", status="active"), "password_recovery")
    page = await opened(phone, town, link)
    await page.keyboard.type(link.code)  # the field has the focus
    await page.keyboard.press("Enter")
    assert await heading(page) == "Thank you, it is you"


async def test_opening_a_link_again_and_again_uses_nothing(
    phone: BrowserContext, town: Town
) -> None:
    """Previews and prefetching browsers open links; some with scripts, some without."""
    link = await town.link(await town.account())
    page = await opened(phone, town, link)
    for _ in range(10):
        await page.reload()
    assert not await town.consumed(link)
    await page.get_by_role("button").click()
    assert await heading(page) == "Your account is active"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_looks_right(browser: Browser, town: Town, scheme: str) -> None:
    """The styles are allowed by the page's own policy, nothing is wider than a phone, and the button is large."""
    context = await browser.new_context(color_scheme=scheme, viewport=PHONE)  # type: ignore[arg-type]
    link = await town.link(await town.account("a" * 200, status="active"), "password_recovery")
    page = await context.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    await page.goto(f"{town.url}{link.address}")
    button = page.get_by_role("button")
    assert (
        await button.evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(191, 68, 8)"
    )
    box = await button.bounding_box()
    assert box is not None
    assert box["height"] >= 48
    assert box["width"] >= 280
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(14, 18, 24)") is (scheme == "dark")
    assert refused == []
    await context.close()


async def test_a_name_runs_nothing(browser: Browser, town: Town) -> None:
    """With JavaScript, as most people have it."""
    context = await browser.new_context(viewport=PHONE)  # type: ignore[arg-type]
    ran: list[str] = []
    page = await context.new_page()
    page.on("dialog", lambda dialog: ran.append(dialog.message))
    link = await town.link(await town.account("ada", name=HOSTILE))
    await page.goto(f"{town.url}{link.address}")
    assert HOSTILE in await page.locator("main").inner_text()
    assert await page.locator("main img, main script").count() == 0
    await page.get_by_role("button").click()
    assert await heading(page) == "Your account is active"
    assert ran == []
    await context.close()


async def test_german(browser: Browser, town: Town) -> None:
    context = await browser.new_context(java_script_enabled=False, locale="de-AT")
    page = await opened(context, town, await town.link(await town.account()))
    assert await page.get_by_role("button").inner_text() == "Konto aktivieren"
    assert await page.locator("html").get_attribute("lang") == "de"
    await context.close()
