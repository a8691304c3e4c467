"""Pages of listings: their cursors, and the links from one page to the next."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Request
from pydantic import AfterValidator, Field
from starlette.responses import Response

from pillarbox.api.routing import json_response

# A page of this size has some hundred kilobytes.
MAX_PAGE_SIZE = 200


def cursor_of(row_id: UUID) -> str:
    """The opaque cursor of the page that begins after this row."""
    return urlsafe_b64encode(row_id.bytes).decode().rstrip("=")


def next_cursor(row_id: UUID | None) -> str | None:
    """The cursor of the next page; None at the end."""
    return None if row_id is None else cursor_of(row_id)


def read_cursor(cursor: str) -> UUID:
    """The id in a checked cursor."""
    return UUID(bytes=urlsafe_b64decode(cursor + "=="))


def row_before(cursor: str | None) -> UUID | None:
    """The last row of the previous page; None: this is the first page."""
    return read_cursor(cursor) if cursor else None


def checked_cursor(cursor: str | None) -> str | None:
    """A cursor; ValueError if this API did not create it."""
    try:
        return cursor and cursor_of(read_cursor(cursor))
    except ValueError:
        raise ValueError("is not a cursor: use `next_cursor` of the previous page") from None


Cursor = Annotated[
    str | None,
    AfterValidator(checked_cursor),
    Field(max_length=22, description="`next_cursor` of the previous page."),
]


def next_path(request: Request, path: str, cursor: str | None) -> str | None:
    """The path and query of the next page; None at the end."""
    if cursor is None:
        return None
    parameters = [each for each in request.query_params.multi_items() if each[0] != "cursor"]
    query = urlencode([*parameters, ("cursor", cursor)])
    return f"{request.scope['root_path']}{path}?{query}"


def page_response(page: object, path: str | None) -> Response:
    """A page, with a Link header (RFC 8288) to the next one at `path`."""
    headers = {"Link": f'<{path}>; rel="next"'} if path else None
    return json_response(page, headers=headers)
