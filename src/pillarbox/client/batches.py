"""Splits many mails into calls of limited size, and restores the order of the results. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pillarbox.accept.mail import Mail
from pillarbox.client.api_call import JSON, ApiCall, HttpRequest, HttpResponse
from pillarbox.client.calls import Sent, key_header, mail_json, new_key
from pillarbox.client.problems import of_problem
from pillarbox.client.reading import read
from pillarbox.errors import InvalidMail, NotAllowed, PillarboxError

Results = list[Sent | PillarboxError]
# The limit of the API for one call.
MAX_PER_CALL = 100
# Bytes of one call: far below the limit of servers (http_max_body), and little to repeat when a
# response is lost.
MAX_CALL_BYTES = 8 * 2**20


class Batches:
    """Submits many mails: make each of `calls`, and report its result with `put` or `fail`."""

    def __init__(self, mails: Sequence[Mail], idempotency_key: str | None) -> None:
        self._key = new_key() if idempotency_key is None else idempotency_key
        key_header(f"{self._key}:{len(mails)}")  # refused before anything is sent
        self._results: dict[int, Sent | PillarboxError] = {}
        self._texts = self._encode(mails)
        self._count = len(mails)

    def calls(self) -> Iterator[tuple[Sequence[int], ApiCall[Results]]]:
        """The calls, each with the positions of its mails."""
        positions: list[int] = []
        texts: list[str] = []
        size = number = 0
        for position, text in self._texts:
            is_full = len(positions) == MAX_PER_CALL or size + len(text) > MAX_CALL_BYTES
            if positions and is_full:
                yield positions, self._call(texts, number)
                positions, texts = [], []
                size = 0
                number += 1
            positions.append(position)
            texts.append(text)
            size += len(text)
        if positions:
            yield positions, self._call(texts, number)

    def put(self, positions: Sequence[int], results: Results) -> None:
        """Add the results of one call."""
        for position, result in zip(positions, results, strict=True):
            self._add(position, result)

    def fail(self, positions: Sequence[int], error: PillarboxError) -> None:
        """A whole call failed. Raises its error if no mail was accepted yet."""
        if not any(isinstance(each, Sent) for each in self._results.values()):
            raise error
        self._results |= dict.fromkeys(positions, error)

    def results(self) -> Results:
        return [self._results[position] for position in range(self._count)]

    def _encode(self, mails: Sequence[Mail]) -> Iterator[tuple[int, str]]:
        """The valid mails as JSON; the errors of the others are their results."""
        for position, mail in enumerate(mails):
            try:
                yield position, _encoded(mail)
            except InvalidMail as error:
                self._add(position, error)

    def _add(self, position: int, result: Sent | PillarboxError) -> None:
        if isinstance(result, (InvalidMail, NotAllowed)):
            result.position = position
        self._results[position] = result

    def _call(self, texts: Sequence[str], number: int) -> ApiCall[Results]:
        body = f'{{"messages":[{",".join(texts)}]}}'.encode()
        headers = JSON | key_header(f"{self._key}:{number}")
        return ApiCall(HttpRequest("POST", "/messages/batch", body, headers), _read, _is_finished)


def _encoded(mail: Mail) -> str:
    if mail.idempotency_key is not None:
        raise InvalidMail(
            "bad_value",
            "idempotency_key",
            "is one key for all mails of a batch",
            "pass it to send_many, or use send",
        )
    return mail_json(mail)


def _read(response: HttpResponse) -> Results:
    return [_item(each) for each in json.loads(response.body)["results"]]


def _item(item: Mapping[str, Any]) -> Sent | PillarboxError:
    if item["status"] != 202:
        return of_problem(item["problem"])
    return replace(read(Sent, item["message"]), repeated=bool(item.get("repeated")))


def _is_finished(response: HttpResponse) -> bool:
    """Whether each mail was accepted or refused; if the database was unavailable, repeat."""
    try:
        return all(each["status"] != 503 for each in json.loads(response.body)["results"])
    except (LookupError, TypeError, ValueError):
        return True
