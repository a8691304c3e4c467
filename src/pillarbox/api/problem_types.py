"""Every problem type of the API: what it means and what to do. Served at /problems/…."""

from __future__ import annotations

from typing import NamedTuple


class ProblemType(NamedTuple):
    """A type of problem: its status, its title, what it means and what to do."""

    status: int
    title: str
    help: str


TYPES: dict[str, ProblemType] = {
    "malformed": ProblemType(
        400, "The request cannot be read", "The body must be one JSON value in UTF-8."
    ),
    "invalid-request": ProblemType(
        422,
        "The request has a wrong, missing or unknown field",
        "`errors` lists the faults, each with its `field` and a `code`: `missing`, `unknown_field`, `bad_type`,"
        " `bad_value`, `unknown_provider`, `not_storable` (PostgreSQL cannot hold a value),"
        " or of an address one of those of `enqueue`.",
    ),
    "invalid-mail": ProblemType(
        422,
        "The mail breaks a rule",
        "`code` and `field` say which; the codes are those of `enqueue`. Nothing was stored.",
    ),
    "template": ProblemType(
        422,
        "The template cannot be rendered",
        "`template` names it, `part` (`subject`, `text` or `html`) and `line` say where, `variable` what `data` lacks."
        " Without a `part` there is no such template, or not in this language. Nothing was stored.",
    ),
    "invalid-setting": ProblemType(
        422,
        "A setting of a tenant, key, login or route is wrong",
        "`code` and `field` say which. Nothing was changed.",
    ),
    "idempotency-conflict": ProblemType(
        409,
        "The idempotency key was used before, for a different request",
        "Use a new key for a new request, or repeat the old one exactly.",
    ),
    "unauthorized": ProblemType(
        401,
        "A valid API key is needed",
        "Send `Authorization: Bearer pbx_…`. A key that is wrong, expired or revoked is answered alike.",
    ),
    "wrong-password": ProblemType(
        401,
        "The address or the password is wrong",
        "An unknown address, a wrong password and somebody who was disabled are answered alike. `pillarbox admin list`"
        " says who there is.",
    ),
    "code": ProblemType(
        422,
        "The code does not count",
        "With `void` true it was used, has expired, was wrong too often, or a newer one took its place: ask for a new"
        " one. Otherwise it is wrong, and may be tried again.",
    ),
    "not-allowed": ProblemType(
        403,
        "The key may not do this",
        "`code` says why: `scope` (the key lacks it), `no_tenant` (an administrator's key has no mails),"
        " `sender_domain`, `recipient_domain`, `wider` (a key makes no key that may do more than itself), `secret`"
        " (the content of this class is never shown), or `no_accounts` (accounts belong to another tenant).",
    ),
    "forged": ProblemType(
        403,
        "The feedback is not proven to come from its provider",
        "`code` says why: `no_key` (the provider has nothing to verify it with), `unsigned`, `signature`, `stale`,"
        " `replayed`, `topic` or `certificate`. Nothing was changed.",
    ),
    "link": ProblemType(
        422,
        "The link does not count",
        "`reason` says why: `forged` (altered, cut off, for something else, or not ours), `expired`, `used`,"
        " `superseded` (there is a newer one), `wrong_code`, `void` (too many wrong codes), or `suspended` (the account"
        " is). Nothing was changed, but a wrong code is counted.",
    ),
    "password": ProblemType(
        422,
        "The new password was not accepted",
        "`detail` says why, if the application does. The link still works: choose another password.",
    ),
    "foreign-origin": ProblemType(
        403,
        "Another web page may not ask",
        "Requests of browsers are answered only for pages of this very server.",
    ),
    "not-found": ProblemType(
        404,
        "There is no such thing",
        "The id or name is wrong, or not yours, or retention has removed it.",
    ),
    "method-not-allowed": ProblemType(
        405, "The method is not allowed here", "`Allow` names those that are."
    ),
    "request-timeout": ProblemType(
        408,
        "The request did not arrive in time",
        "Send it whole; the limit is `http_request_timeout`.",
    ),
    "in-flight": ProblemType(
        409,
        "It is being sent right now",
        "What a worker has in hand cannot be called back. Look again in a moment: `deliveries` says where each is.",
    ),
    "not-possible": ProblemType(
        409, "Its state does not allow this", "`deliveries` says in which state each of them is."
    ),
    "taken": ProblemType(409, "The name is taken", "Choose another, or revoke what has it."),
    "content-purged": ProblemType(
        410, "The content was dropped", "Retention removed it, or it was secret and settled."
    ),
    "too-large": ProblemType(
        413,
        "The body is too large",
        "The limit is `http_max_body`. Send a link instead of a large file.",
    ),
    "unsupported-media-type": ProblemType(
        415,
        "The body is of another kind",
        "Send `Content-ProblemType: application/json`; for an import, `text/csv`; for a report, `message/rfc822`.",
    ),
    "wrong-host": ProblemType(
        421,
        "This host name is not served here",
        "Use the address it listens on, or add the name to `http_hosts`.",
    ),
    "throttled": ProblemType(
        429, "Too many wrong keys or passwords came from there", "Wait as `Retry-After` says."
    ),
    "head-too-large": ProblemType(
        431, "The head of the request is too large", "Send fewer and shorter header fields."
    ),
    "internal": ProblemType(
        500,
        "Something went wrong here",
        "It is a fault of Pillarbox, and in its log. Please report it.",
    ),
    "overloaded": ProblemType(
        503, "Too much is asked at once", "Nothing was stored. Come back as `Retry-After` says."
    ),
    "store-away": ProblemType(
        503,
        "The database does not answer",
        "Come back as `Retry-After` says. Repeat with the same `Idempotency-Key`: then nothing is stored twice.",
    ),
}
