"""Every problem type of the API: its status, what it means, and what to do.

They are served at /problems/…, and the reference is generated from them.
"""

from __future__ import annotations

from typing import NamedTuple


class ProblemType(NamedTuple):
    """A type of problem: its HTTP status, its title, what it means and what to do."""

    status: int
    title: str
    help: str


TYPES: dict[str, ProblemType] = {
    "malformed": ProblemType(
        400, "Malformed request", "The body must be a single JSON value in UTF-8."
    ),
    "invalid-request": ProblemType(
        422,
        "Invalid, missing or unknown field",
        "`errors` lists each invalid field with its `field` and a `code`: `missing`,"
        " `unknown_field`, `bad_type`, `bad_value`, `unknown_provider`, `not_storable`"
        " (PostgreSQL cannot store the value), or for an address one of the codes of `enqueue`.",
    ),
    "invalid-mail": ProblemType(
        422,
        "Invalid mail",
        "`field` names the field, `code` the rule; the codes are those of `enqueue`. Nothing was"
        " stored.",
    ),
    "template": ProblemType(
        422,
        "The template cannot be rendered",
        "`template` is its name; `part` (`subject`, `text` or `html`) and `line` are the position"
        " of the error; `variable` is missing in `data`. Without `part`, the template does not"
        " exist, or not in this language. Nothing was stored.",
    ),
    "invalid-setting": ProblemType(
        422,
        "Invalid setting of a tenant, key, login or route",
        "`field` names the setting, `code` the rule. Nothing was changed.",
    ),
    "idempotency-conflict": ProblemType(
        409,
        "The idempotency key was used for a different request",
        "Use a new key for a new request, or repeat the first request exactly.",
    ),
    "unauthorized": ProblemType(
        401,
        "A valid API key is required",
        "Send `Authorization: Bearer pbx_…`. The response is the same for a wrong, an expired and a"
        " revoked key.",
    ),
    "wrong-password": ProblemType(
        401,
        "Wrong address or password",
        "The response is the same for an unknown address, a wrong password and a disabled"
        " administrator. `pillarbox admin list` lists the administrators.",
    ),
    "code": ProblemType(
        422,
        "The code is not valid",
        "If `void` is true, the code was used, has expired, was replaced by a newer one, or there"
        " were too many wrong attempts: request a new one. If it is false, the code is wrong and"
        " can be entered again.",
    ),
    "not-allowed": ProblemType(
        403,
        "Not allowed with this key",
        "`code` is the reason: `scope` (the key lacks a scope), `no_tenant` (an administrator's"
        " key has no mails), `sender_domain`, `recipient_domain`, `wider` (a key cannot create a"
        " key with more rights than its own), `secret` (the content of this class is never"
        " shown), or `no_accounts` (the accounts belong to a different tenant).",
    ),
    "forged": ProblemType(
        403,
        "The origin of the feedback is not verified",
        "`code` is the reason: `no_key` (the provider has no key to verify with), `unsigned`,"
        " `signature`, `stale`, `replayed`, `topic` or `certificate`. Nothing was changed.",
    ),
    "link": ProblemType(
        422,
        "The link is not valid",
        "`reason` is one of `forged` (changed, incomplete, for a different action, or signed with"
        " an unknown key), `expired`, `used`, `superseded` (a newer link exists), `wrong_code`,"
        " `void` (too many wrong codes), or `suspended` (the account is). Nothing was changed,"
        " except that a wrong code is counted.",
    ),
    "password": ProblemType(
        422,
        "The new password was not accepted",
        "`detail` is the application's reason, if it gives one. The link is still valid: choose a"
        " different password.",
    ),
    "foreign-origin": ProblemType(
        403,
        "Cross-origin request refused",
        "Requests from web pages are accepted only from pages of this server.",
    ),
    "not-found": ProblemType(
        404,
        "Not found",
        "The id or name is wrong, belongs to a different tenant, or was removed by retention.",
    ),
    "method-not-allowed": ProblemType(
        405, "Method not allowed", "The header `Allow` lists the methods of this path."
    ),
    "request-timeout": ProblemType(
        408,
        "The request did not arrive in time",
        "Send it completely; the limit is `http_request_timeout`.",
    ),
    "in-flight": ProblemType(
        409,
        "The message is being sent",
        "A delivery that a worker has claimed cannot be changed. Try again later: `deliveries`"
        " contains the state of each delivery.",
    ),
    "not-possible": ProblemType(
        409,
        "Not possible in this state",
        "`deliveries` contains the state of each delivery.",
    ),
    "taken": ProblemType(
        409,
        "The name is in use",
        "Choose a different name, or revoke the key or login that has it.",
    ),
    "content-purged": ProblemType(
        410,
        "The content was deleted",
        "Retention deleted it, or its class is secret and the message is settled.",
    ),
    "too-large": ProblemType(
        413,
        "The body is too large",
        "The limit is `http_max_body`. Send a link instead of a large file.",
    ),
    "unsupported-media-type": ProblemType(
        415,
        "Unsupported content type",
        "Send `Content-Type: application/json`; for an import `text/csv`, for a report"
        " `message/rfc822`.",
    ),
    "wrong-host": ProblemType(
        421,
        "Unknown host name",
        "Use the address on which the server listens, or add the name to `http_hosts`.",
    ),
    "throttled": ProblemType(
        429,
        "Too many failed authentications",
        "Wait for the seconds in the header `Retry-After`.",
    ),
    "head-too-large": ProblemType(
        431, "The request header is too large", "Send fewer and shorter header fields."
    ),
    "internal": ProblemType(
        500,
        "Internal error",
        "This is a bug in Pillarbox. Its log contains the details; please report it.",
    ),
    "overloaded": ProblemType(
        503,
        "Too many requests at once",
        "Nothing was stored. Repeat the request after the seconds in the header `Retry-After`.",
    ),
    "store-away": ProblemType(
        503,
        "The database is unavailable",
        "Repeat the request after the seconds in the header `Retry-After`, with the same"
        " `Idempotency-Key`: then nothing is stored twice.",
    ),
}
