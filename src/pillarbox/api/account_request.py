"""One request to an account page: its parameters, and the response as a page or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.responses import HTMLResponse, JSONResponse, Response

from pillarbox.api import account_pages as pages
from pillarbox.api.account_pages import MAX_PASSWORD_LENGTH, NEUTRAL, ActionForm, Branding, HtmlPage
from pillarbox.api.account_texts import LANGUAGES, language_for
from pillarbox.api.bodies import check_json, media_type
from pillarbox.api.fields import StrictModel
from pillarbox.api.problems import ProblemError
from pillarbox.api.routing import parsed
from pillarbox.errors import InvalidToken, PasswordRefused, WrongCode
from pillarbox.lifecycle.account_links import LinkFields
from pillarbox.lifecycle.one_time_codes import normalize_code

if TYPE_CHECKING:
    from starlette.requests import Request

    from pillarbox.store.lifecycle import TokenAction, TokenState

FORM = "application/x-www-form-urlencoded"
# Fields of a form or a query: mail programs add some of their own to links.
MAX_FIELDS = 50
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address of a page is the link
    "X-Robots-Tag": "noindex, nofollow",
    "X-Content-Type-Options": "nosniff",
}
# The texts for problems that do not concern the link itself.
_TEXT_OF_PROBLEM = {"throttled": "throttled", "store-away": "away", "overloaded": "away"}
BrandingOf = Callable[[str, str], Branding]  # of a portal, in a language


class LinkBody(StrictModel):
    """The JSON body of a request."""

    token: str
    expires: str | None = None
    code: str | None = None
    password: str | None = None  # the new one, where the page of the action sets it


class AccountRequest:
    """A request to the page of an action, in the language and the branding of its account."""

    def __init__(
        self,
        http: Request,
        action: TokenAction,
        locale: str,
        branding_of: BrandingOf,
        *,
        sets_password: bool = False,
    ) -> None:
        self.http = http
        self.action = action
        self.fields = LinkFields()
        self.sets_password = sets_password
        # As they were typed; never shown, never stored.
        self._passwords: tuple[str | None, str | None] = (None, None)
        self._default_locale = locale
        self._branding_of = branding_of
        self._token: TokenState | None = None

    def read_query(self) -> None:
        """Read the parameters of the link."""
        query = self.http.scope["query_string"]
        self.fields = _link_fields(_fields(query))

    def read_body(self, body: bytes) -> None:
        """Read the body: a form, or JSON."""
        if media_type(self.http.headers) == FORM:
            fields = _fields(body)
            self._passwords = fields.get("password"), fields.get("password_again")
        else:
            check_json(self.http.headers)
            parameters: LinkBody = parsed(LinkBody, body)
            if parameters.password is not None and not self.sets_password:
                detail = "this page sets no password: the setting recovery_hook_url is empty"
                raise ProblemError(
                    "invalid-request", detail, code="unknown_field", field="password"
                )
            self._passwords = parameters.password, parameters.password
            fields = parameters.model_dump(exclude_none=True)
        self.fields = _link_fields(fields)

    def new_password(self) -> str:
        """The new password; PasswordRefused if it is invalid, or differs from its repetition."""
        words = LANGUAGES[self._language]
        password, again = self._passwords
        if not password or len(password) > MAX_PASSWORD_LENGTH or not password.isprintable():
            raise PasswordRefused(words.refused)
        if password != again:
            raise PasswordRefused(words.differ)
        return password

    def set_account(self, token: TokenState) -> None:
        """Set the account of the link."""
        self._token = token

    def form_response(self, state: TokenState) -> Response:
        if self._wants_json:
            account = {"id": state.account, "login": state.login}
            more = {
                "with_code": state.with_code,
                "with_password": self.sets_password,
                "expires_at": state.expires_at,
            }
            return self._json({"account": account, "action": state.action, **more})
        return self._page(self._form_page(state))

    def done_response(self, used: TokenState) -> Response:
        if self._wants_json:
            account = {"id": used.account, "login": used.login, "status": used.status}
            return self._json({"account": account, "action": used.action})
        return self._page(
            pages.done(
                used.action, self._branding, self._language, with_password=self.sets_password
            )
        )

    def refused_password_response(self, error: PasswordRefused) -> Response:
        """Show the form again, with the reason why the password was refused."""
        assert self._token is not None, "a password is checked after its link"
        reason = error.detail or LANGUAGES[self._language].refused
        problem = ProblemError("password", reason)
        if self._wants_json:
            return self._with_headers(problem.response())
        return self._page(self._form_page(self._token, refused=reason), problem.type.status)

    def invalid_link_response(self, error: InvalidToken) -> Response:
        """Explain why the link is not valid; after a wrong code, show the form again."""
        reason = "void" if isinstance(error, WrongCode) and error.void else error.reason
        problem = ProblemError("link", str(error), reason=reason)
        if self._wants_json:
            return self._with_headers(problem.response())
        if reason == "wrong_code" and self._token is not None:
            return self._page(self._form_page(self._token, wrong=True), problem.type.status)
        return self._page(pages.ended(reason, self._branding, self._language), problem.type.status)

    def problem_response(self, problem: ProblemError) -> Response:
        """Show a problem with the request or the server."""
        if self._wants_json:
            return self._with_headers(problem.response())
        ending = _TEXT_OF_PROBLEM.get(problem.name, "malformed")
        page = pages.ended(ending, self._branding, self._language)
        return self._page(page, problem.type.status, problem.headers)

    @property
    def _wants_json(self) -> bool:
        """Whether to answer with JSON: the client accepts it, or sends it and accepts no HTML."""
        accepted = self.http.headers.get("accept", "")
        if "text/html" in accepted:
            return False
        return "json" in accepted or "json" in media_type(self.http.headers)

    @property
    def _language(self) -> str:
        accept_language = self.http.headers.get("accept-language")
        locale = self._token.locale if self._token else None
        return language_for(locale, accept_language, self._default_locale)

    @property
    def _branding(self) -> Branding:
        if self._token is None:
            return NEUTRAL
        return self._branding_of(self._token.portal, self._language)

    def _form_page(
        self, token: TokenState, wrong: bool = False, refused: str | None = None
    ) -> HtmlPage:
        assert self.action.path is not None
        hidden = {"token": self.fields.token, "expires": self.fields.expires}
        # A wrong code is not shown again.
        typed = (self.fields.code or "") if refused else ""
        question = ActionForm(
            action=token.action,
            path=self.action.path,
            person=token.name or token.login,
            with_code=self.action.with_code,
            hidden={name: value for name, value in hidden.items() if value is not None},
            wrong=wrong,
            with_password=self.sets_password,
            refused=refused,
            code=typed,
        )
        return pages.ask(question, self._branding, self._language)

    def _page(
        self, page: HtmlPage, status: int = 200, headers: dict[str, str] | None = None
    ) -> Response:
        policy = {"Content-Security-Policy": page.policy, "Content-Language": self._language}
        return HTMLResponse(page.html, status, HEADERS | policy | (headers or {}))

    def _json(self, content: dict[str, Any]) -> Response:
        return JSONResponse(content, headers=HEADERS)

    def _with_headers(self, response: Response) -> Response:
        response.headers.update(HEADERS)
        return response


def _fields(text: bytes) -> dict[str, str]:
    """The fields of a form or a query; of several with one name, the first."""
    try:
        pairs = parse_qsl(
            text.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise ProblemError("malformed", f"at most {MAX_FIELDS} fields are allowed") from None
    return dict(reversed(pairs))


def _link_fields(fields: dict[str, str]) -> LinkFields:
    code = fields.get("code")
    if code is not None:
        code = normalize_code(code)
    return LinkFields(fields.get("token", ""), fields.get("expires"), code)
