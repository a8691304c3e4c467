"""`/webhooks/…`: receives the feedback of providers, authenticated by their signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from pillarbox.api.bodies import BodyBudget
from pillarbox.api.problems import EXPECTED, STORE_RETRY, ProblemError, problem_of
from pillarbox.errors import Forged, NoAnswer, SecretError
from pillarbox.telemetry import logs
from pillarbox.track.feedback.base import SignedRequest
from pillarbox.track.feedback_receiver import UnreadableFeedback

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pillarbox.app import App

log = logs.get("pillarbox.http")
# Of the room for all bodies, the part that strangers may fill: they are asked for a signature only
# at the end.
SHARE = 4
# The largest id of a provider in the database.
LARGEST_ID = 2**31 - 1


class FeedbackEndpoint:
    """Answers 200 when the feedback is committed; otherwise the provider sends it again."""

    def __init__(self, app: App | None) -> None:
        self._app = app
        size = 0
        if app is not None:
            settings = app.settings
            size = max(settings.http_bytes_in_flight // SHARE, settings.feedback_max_body)
        self._bodies = BodyBudget(size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._take(request)
        except (ProblemError, *EXPECTED) as error:
            response = problem_of(error).response()
        await response(scope, receive, send)

    async def _take(self, request: Request) -> Response:
        app = self._app
        assert app is not None
        kind, provider_id = request.path_params["provider_kind"], request.path_params["provider_id"]
        if provider_id > LARGEST_ID:
            raise ProblemError("not-found", "there is no provider with this id")
        with self._bodies.hold(app.settings.feedback_max_body) as held:
            posted = SignedRequest(
                request.headers, await held.read(request.headers, request.receive)
            )
            try:
                await app.feedback_receiver.take(kind, provider_id, posted)
            except Forged as error:
                raise ProblemError(
                    "forged",
                    "the signature does not prove that the provider sent this",
                    code=error.reason,
                ) from None
            except UnreadableFeedback:
                raise ProblemError("malformed", "the feedback cannot be read") from None
            except (NoAnswer, SecretError) as error:
                log.error("feedback cannot be taken", provider_id=provider_id, error=str(error))
                raise ProblemError(
                    "overloaded", "try again later", headers={"Retry-After": str(STORE_RETRY)}
                ) from None
        return Response(status_code=200)
