"""Many mails in calls of bounded size, and their results brought back into order. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pillarbox.accept.mail import Mail
from pillarbox.client.calls import (
    JSON,
    ApiCall,
    HttpRequest,
    HttpResponse,
    Sent,
    key_header,
    mail_json,
    new_key,
)
from pillarbox.client.problems import of_problem
from pillarbox.client.reading import read
from pillarbox.errors import InvalidMail, NotAllowed, PillarboxError

Results = list[Sent | PillarboxError]
# What the API takes in one call.
MAX_PER_CALL = 100
# Octets of one call: far below what servers take (http_max_body), and little to repeat when its
# answer is lost.
MAX_CALL_BYTES = 8 * 2**20


class Batches:
    """Hands many mails over: make each of `calls`, and tell what came of it by `put` or `fail`."""

    def __init__(self, mails: Sequence[Mail], idempotency_key: str | None) -> None:
        self._key = new_key() if idempotency_key is None else idempotency_key
        key_header(f"{self._key}:{len(mails)}")  # refused before anything is sent
        self._results: dict[int, Sent | PillarboxError] = {}
        self._written = self._write(mails)
        self._count = len(mails)

    def calls(self) -> Iterator[tuple[Sequence[int], ApiCall[Results]]]:
        """The calls, each with the places of its mails."""
        places: list[int] = []
        texts: list[str] = []
        octets = number = 0
        for place, text in self._written:
            if places and (len(places) == MAX_PER_CALL or octets + len(text) > MAX_CALL_BYTES):
                yield places, self._call(texts, number)
                places, texts, octets, number = [], [], 0, number + 1
            places.append(place)
            texts.append(text)
            octets += len(text)
        if places:
            yield places, self._call(texts, number)

    def put(self, places: Sequence[int], results: Results) -> None:
        """What came of the mails of one call."""
        for place, result in zip(places, results, strict=True):
            _place(result, place)
            self._results[place] = result

    def fail(self, places: Sequence[int], error: PillarboxError) -> None:
        """A whole call failed. Raised while nothing was sent: then the caller loses nothing by it."""
        if not any(isinstance(one, Sent) for one in self._results.values()):
            raise error
        self._results |= dict.fromkeys(places, error)

    def results(self) -> Results:
        return [self._results[place] for place in range(self._count)]

    def _write(self, mails: Sequence[Mail]) -> Iterator[tuple[int, str]]:
        """The good mails as JSON; what is wrong with the others is their result."""
        for place, mail in enumerate(mails):
            try:
                yield place, _written(mail)
            except InvalidMail as error:
                _place(error, place)
                self._results[place] = error

    def _call(self, texts: Sequence[str], number: int) -> ApiCall[Results]:
        body = f'{{"messages":[{",".join(texts)}]}}'.encode()
        request = HttpRequest(
            "POST", "/messages/batch", body, JSON | key_header(f"{self._key}:{number}")
        )
        return ApiCall(request, _read, _is_finished)


def _written(mail: Mail) -> str:
    if mail.idempotency_key is not None:
        raise InvalidMail(
            "bad_value",
            "idempotency_key",
            "several mails have one key together",
            "give it to send_many, or use send",
        )
    return mail_json(mail)


def _place(result: Sent | PillarboxError, place: int) -> None:
    if isinstance(result, (InvalidMail, NotAllowed)):
        result.position = place


def _read(answer: HttpResponse) -> Results:
    return [_item(one) for one in json.loads(answer.body)["results"]]


def _item(one: Mapping[str, Any]) -> Sent | PillarboxError:
    if one["status"] != 202:
        return of_problem(one["problem"])
    sent = read(Sent, one["message"])
    return Sent(sent.id, sent.deliveries, bool(one.get("repeated")))


def _is_finished(answer: HttpResponse) -> bool:
    """Whether every mail was decided on: those that met an absent database are worth another try."""
    try:
        return all(one["status"] != 503 for one in json.loads(answer.body)["results"])
    except (LookupError, TypeError, ValueError):
        return True
