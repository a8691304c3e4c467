"""The mails that come with Pillarbox, in a real browser: they fit a phone, load nothing and can be read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, sync_playwright

from pillarbox.lifecycle.rendering import Templates
from pillarbox.lifecycle.template_checks import sample_of

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"
)

PHONE = 375
# A finger hits what is as high as this (Apple's guidelines; WCAG 2.2 asks for 24).
FINGER = 44
TEMPLATES = Templates()
MAILS = [(name, locale) for name in TEMPLATES.names() for locale in TEMPLATES.locales(name)]
each_mail = pytest.mark.parametrize(("name", "locale"), MAILS, ids=["-".join(one) for one in MAILS])
LONG: dict[str, Any] = {
    "account": {
        "name": "Wolfeschlegelsteinhausenbergerdorff" * 3,
        "login": "maximiliane" * 9,
        "email": f"{'maximiliane' * 5}@{'long-domain' * 5}.example.com",
    },
    "inviter": "Hubertus" * 12,
    "organisation": "Donaudampfschifffahrtsgesellschaft" * 3,
}

# Text whose colour stands out too little from what is behind it (WCAG 2.2 AA); dots between links
# are no text.
TOO_PALE = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => channels(colour).slice(0, 3)
    .map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const isClear = (colour) => channels(colour)[3] === 0;
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!isClear(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode());) {
    const element = text.parentElement;
    if (!text.data.trim() || element.closest(".preheader, .dot")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(style.color), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) found.push(`${ratio.toFixed(2)}: ${text.data.trim().slice(0, 40)}`);
  }
  return found;
}"""


class Requests:
    """What a page asked the network for; nobody gets an answer."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    def refuse(self, route: Route) -> None:
        self.urls.append(route.request.url)
        route.abort()


@pytest.fixture(scope="module")
def requests() -> Requests:
    return Requests()


@pytest.fixture(scope="module")
def page(requests: Requests) -> Iterator[Page]:
    """One page of one browser, as wide as a phone."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        page = browser.new_page(viewport={"width": PHONE, "height": 700})
        page.route("**/*", requests.refuse)
        yield page
        browser.close()


def show(page: Page, name: str, locale: str, **data: Any) -> dict[str, Any]:
    """Put a mail on the page; gives the data it was made of."""
    sample = {**sample_of(TEMPLATES, name), **data}
    page.set_content(TEMPLATES.render(name, locale, sample).html or "")
    return sample


def width(page: Page) -> int:
    found = page.evaluate("document.documentElement.scrollWidth")
    assert isinstance(found, int)
    return found


def test_the_tests_would_notice(page: Page, requests: Requests) -> None:
    requests.urls.clear()
    page.set_content(
        '<body style="background: #fff"><div style="width: 400px; color: #999">pale</div><img src="https://remote.example/x.png">'
    )
    assert requests.urls == ["https://remote.example/x.png"]
    assert width(page) > PHONE
    assert len(page.evaluate(TOO_PALE)) == 1


@each_mail
def test_it_fits_a_phone_and_loads_nothing(
    page: Page, requests: Requests, name: str, locale: str
) -> None:
    requests.urls.clear()
    show(page, name, locale)
    assert width(page) == PHONE
    show(page, name, locale, **LONG)
    assert width(page) == PHONE
    assert requests.urls == []


@each_mail
def test_its_button_leads_where_the_link_does(page: Page, name: str, locale: str) -> None:
    sample = show(page, name, locale)
    expected = sample["link"]
    if name.endswith("/welcome"):  # nothing to confirm: it leads to the portal itself
        expected = TEMPLATES.portal(name.partition("/")[0]).links[locale][0][1]
    buttons = page.locator("a.button-link")
    assert [one.get_attribute("href") for one in buttons.all()] == ([expected] if expected else [])
    for one in buttons.all():
        box = one.bounding_box()
        assert box is not None
        assert box["height"] >= FINGER


@each_mail
def test_its_code_stands_out(page: Page, name: str, locale: str) -> None:
    sample = show(page, name, locale)
    codes = page.locator("td.code")
    assert codes.all_inner_texts() == ([sample["code"]] if sample["code"] else [])
    for one in codes.all():
        size, family = one.evaluate(
            "e => [parseFloat(getComputedStyle(e).fontSize), getComputedStyle(e).fontFamily]"
        )
        assert size >= 28
        assert family.endswith("monospace")


@each_mail
def test_it_can_be_read_by_day_and_by_night(page: Page, name: str, locale: str) -> None:
    show(page, name, locale)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # both are literals
        assert page.evaluate(TOO_PALE) == [], scheme


def test_dark_mode_is_dark(page: Page) -> None:
    show(page, "hub/welcome", "en")
    background = "getComputedStyle(document.querySelector('td.sheet')).backgroundColor"
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == "rgb(27, 32, 39)"
