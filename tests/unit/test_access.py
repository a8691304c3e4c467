"""Who may do what: scopes, domains, limits of tenants and keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import idna
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pillarbox.errors import InvalidMail, NotAllowed
from pillarbox.model.access import (
    Order,
    Principal,
    Scope,
    Tenant,
    check_allowed,
    check_sender,
    domain_of,
    domain_pattern,
    matches,
    require,
    require_admin,
)
from pillarbox.model.access_settings import (
    MAX_DOMAINS,
    MAX_INTEGER,
    check_together,
    checked_domains,
    checked_name,
    checked_scopes,
    checked_settings,
)

LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True).filter(
    lambda one: one[2:4] != "--"
)
DOMAIN = st.lists(LABEL, min_size=1, max_size=4).map(".".join)
# Letters that IDNA takes in both cases: Latin, Greek without the final sigma, Cyrillic.
UNICODE_LABEL = st.text("abcxyzäöüéñçłšžαβγδωбгджя", min_size=1, max_size=12)
UNICODE_DOMAIN = st.lists(UNICODE_LABEL, min_size=1, max_size=3).map(".".join)


def tenant(**settings: Any) -> Tenant:
    return Tenant(7, "shop", datetime(2030, 1, 1, tzinfo=UTC), **settings)


def principal(owner: Tenant | None, *scopes: Scope, **restrictions: Any) -> Principal:
    return Principal("key", "website", owner, frozenset(scopes or {Scope.SEND}), **restrictions)


# --- scopes


def test_a_scope_gives_the_tenant() -> None:
    owner = tenant()
    assert require(principal(owner, Scope.READ), Scope.READ) is owner


@pytest.mark.parametrize("wanted", [Scope.READ, Scope.MANAGE, Scope.ADMIN])
def test_a_missing_scope_is_named(wanted: Scope) -> None:
    with pytest.raises(NotAllowed, match=f"lacks the scope {wanted}") as caught:
        require(principal(tenant(), Scope.SEND), wanted)
    assert (caught.value.code, caught.value.field) == ("scope", "key")
    assert caught.value.hint


def test_an_administrator_has_no_tenant_to_send_for() -> None:
    admin = principal(None, *Scope)
    require_admin(admin)
    with pytest.raises(NotAllowed) as caught:
        require(admin, Scope.SEND)
    assert caught.value.code == "no_tenant"
    with pytest.raises(NotAllowed):
        check_allowed(admin, "a@x.example", ["b@x.example"], 1)


def test_a_tenants_key_is_no_administrators() -> None:
    with pytest.raises(NotAllowed, match="--admin"):
        require_admin(principal(tenant(), Scope.SEND, Scope.READ, Scope.MANAGE))


# --- domains


@given(DOMAIN)
def test_a_domain_is_itself_in_any_case(domain: str) -> None:
    pattern = domain_pattern(domain.upper())
    assert pattern == domain
    for written in (domain, domain.upper(), domain.title()):
        assert matches(domain_of(f"Name <x@{written}>"), [pattern])
        assert matches(domain_of(f"x@{written}"), [pattern])


@given(DOMAIN, LABEL)
def test_a_domain_is_not_its_subdomains(domain: str, label: str) -> None:
    below, beside = f"{label}.{domain}", f"{label}{domain}"
    exact, star = domain_pattern(domain), domain_pattern(f"*.{domain}")
    assert matches(below, [star])
    assert not matches(below, [exact])
    assert not matches(domain, [star])
    assert not matches(beside, [exact, star])


@given(UNICODE_DOMAIN)
def test_an_internationalised_domain_is_itself_in_both_forms_and_any_case(domain: str) -> None:
    try:
        ascii_form = idna.encode(domain, uts46=True).decode()
    except idna.IDNAError:
        assume(False)
    assert (
        domain_pattern(domain)
        == domain_pattern(domain.upper())
        == domain_pattern(ascii_form)
        == ascii_form
    )
    for written in (domain, domain.upper(), ascii_form, ascii_form.upper()):
        assert matches(domain_of(f"x@{written}"), [ascii_form])
        assert matches(domain_of(f"x@sub.{written}"), [f"*.{ascii_form}"])


@given(st.text(max_size=40))
def test_anything_is_a_legal_pattern_or_a_clear_error(text: str) -> None:
    try:
        pattern = domain_pattern(text)
    except ValueError:
        return
    assert domain_pattern(pattern) == pattern
    assert pattern.isascii()
    assert pattern == pattern.lower()


@pytest.mark.parametrize(
    "wrong",
    ["", "*", "*.", "*.*.example.com", "a.*.example", "example.com.", ".example.com", "a..b", "me@example.com",
     "exa mple.com", "example.com:25", "-a.example", "a-.example", "a" * 64 + ".example", "a." * 130 + "b",
     "[127.0.0.1]", "exa\nmple.com", "https://example.com"],
)  # fmt: skip
def test_what_is_no_domain(wrong: str) -> None:
    with pytest.raises(ValueError, match="not a domain"):
        domain_pattern(wrong)


def test_sharp_s_is_not_ss() -> None:
    assert not matches(domain_of("x@faß.example"), [domain_pattern("fass.example")])


def test_an_underscore_hides_no_domain() -> None:
    assert matches(domain_of("x@_dmarc.bücher.example"), [domain_pattern("*.bücher.example")])


def test_a_quoted_local_part_is_no_domain() -> None:
    assert domain_of('"a@shop.example"@evil.example') == "evil.example"


# --- limits


def test_nothing_set_allows_all() -> None:
    check_allowed(principal(tenant()), "a@any.example", ["b@other.example"] * 100, 10**9)


@pytest.mark.parametrize(
    "sender", ["a@evil.example", "Shop <a@shop.example.evil.example>", "a@notshop.example"]
)
def test_a_foreign_sender_is_refused(sender: str) -> None:
    with pytest.raises(NotAllowed) as caught:
        check_allowed(
            principal(tenant(sender_domains=("shop.example",))), sender, ["b@x.example"], 1
        )
    assert (caught.value.code, caught.value.field) == ("sender_domain", "sender")


def test_the_default_sender_is_checked_too() -> None:
    limited = principal(tenant(default_sender="a@shop.example"), sender_domains=("other.example",))
    with pytest.raises(NotAllowed):
        check_allowed(limited, None, ["b@x.example"], 1)
    check_allowed(
        principal(tenant(default_sender="a@shop.example", sender_domains=("shop.example",))),
        None,
        ["b@x"],
        1,
    )


def test_a_restricted_mail_needs_a_sender() -> None:
    with pytest.raises(InvalidMail) as caught:
        check_allowed(principal(tenant(sender_domains=("shop.example",))), None, ["b@x.example"], 1)
    assert caught.value.code == "bad_address"


def test_a_key_restricts_further_and_never_less() -> None:
    owner = tenant(sender_domains=("shop.example", "*.shop.example"))
    narrow = principal(owner, sender_domains=("news.shop.example",))
    check_allowed(narrow, "a@news.shop.example", ["b@x.example"], 1)
    with pytest.raises(NotAllowed, match="the key may not"):
        check_allowed(narrow, "a@shop.example", ["b@x.example"], 1)
    wide = principal(owner, sender_domains=("evil.example",))
    with pytest.raises(NotAllowed, match="the tenant may not"):
        check_allowed(wide, "a@evil.example", ["b@x.example"], 1)


def test_every_recipient_counts() -> None:
    staging = principal(tenant(), recipient_domains=("lab.example", "*.lab.example"))
    check_allowed(staging, "a@x.example", ["b@lab.example", "C <c@deep.lab.example>"], 1)
    with pytest.raises(NotAllowed) as caught:
        check_allowed(staging, "a@x.example", ["b@lab.example", "victim@mail.example"], 1)
    assert (caught.value.code, caught.value.field) == ("recipient_domain", "to")
    assert "victim" not in str(caught.value)


def test_size_and_recipients_end_where_they_should() -> None:
    limited = principal(tenant(max_message_bytes=5000, max_recipients=2))
    check_allowed(limited, "a@x.example", ["b@x.example"] * 2, 5000)
    with pytest.raises(InvalidMail) as caught:
        check_allowed(limited, "a@x.example", ["b@x.example"] * 3, 5000)
    assert (caught.value.code, caught.value.field) == ("recipient_count", "to")
    with pytest.raises(InvalidMail) as caught:
        check_allowed(limited, "a@x.example", ["b@x.example"], 5001)
    assert (caught.value.code, caught.value.field) == ("too_large", "message")


def test_a_header_can_be_checked_like_the_sender() -> None:
    limited = principal(tenant(sender_domains=("shop.example",)))
    check_sender(limited, "Shop <a@SHOP.example>", "raw")
    with pytest.raises(NotAllowed) as caught:
        check_sender(limited, "Boss <a@bank.example>", "raw")
    assert caught.value.field == "raw"


# --- what may be said about them


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"rate_per_second": 0}, "out_of_range"),
        ({"rate_per_hour": -1}, "out_of_range"),
        ({"rate_per_day": MAX_INTEGER + 1}, "out_of_range"),
        ({"max_recipients": 0}, "out_of_range"),
        ({"max_message_bytes": 100}, "out_of_range"),
        ({"order": "random"}, "unknown_order"),
        ({"default_sender": "nobody"}, "bad_address"),
        ({"sender_domains": ["shop example"]}, "bad_domain"),
        ({"sender_domains": ["a.example"] * (MAX_DOMAINS + 1)}, "too_many"),
        ({"content_retention": timedelta(0)}, "out_of_range"),
        ({"finished_retention": timedelta(days=99999)}, "out_of_range"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidMail) as caught:
        checked_settings(settings)
    assert caught.value.code == code
    assert caught.value.field in settings


def test_settings_are_kept_as_they_are_compared() -> None:
    kept = checked_settings(
        {"order": "strict", "sender_domains": ["Bücher.example", "xn--bcher-kva.example"]}
    )
    assert kept == {"order": Order.STRICT, "sender_domains": ("xn--bcher-kva.example",)}
    assert checked_settings({"rate_per_second": None, "content_retention": None}) == {
        "rate_per_second": None,
        "content_retention": None,
    }


def test_a_default_sender_fits_the_sender_domains() -> None:
    check_together(tenant(default_sender="a@shop.example", sender_domains=("shop.example",)))
    with pytest.raises(InvalidMail, match="one of the sender domains"):
        check_together(tenant(default_sender="a@shop.example", sender_domains=("other.example",)))


def test_scopes_are_a_tenants_or_an_administrators() -> None:
    assert checked_scopes([Scope.READ, Scope.SEND, Scope.READ], admin=False) == (
        Scope.SEND,
        Scope.READ,
    )
    assert checked_scopes([Scope.ADMIN], admin=True) == (Scope.ADMIN,)
    for scopes, admin in (([], False), ([Scope.ADMIN], False), ([Scope.SEND], True), ([], True)):
        with pytest.raises(InvalidMail) as caught:
            checked_scopes(scopes, admin=admin)
        assert caught.value.code == "bad_scope"


@pytest.mark.parametrize("wrong", ["", "a b", "-a", "a@b", "a" * 64, "ä"])
def test_what_is_no_name(wrong: str) -> None:
    with pytest.raises(InvalidMail):
        checked_name(wrong)


def test_domains_are_listed_once() -> None:
    assert checked_domains("x", ["A.example", "a.example", "*.a.example"]) == (
        "a.example",
        "*.a.example",
    )
