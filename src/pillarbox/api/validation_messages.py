"""Messages for the error types of pydantic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Context = Mapping[str, Any]


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _counted(count: object, noun: str) -> str:
    plural = "" if count == 1 else "s"
    return f"{_number(count)} {noun}{plural}"


_WORDS: Mapping[str, str | Callable[[Context], str]] = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "none_required": "must be null",
    "bytes_type": "must be a string of base64",
    "uuid_type": "must be an id (a UUID)",
    "uuid_parsing": "must be an id (a UUID)",
    "datetime_type": "must be a time such as 2030-12-31T23:59:00Z",
    "datetime_parsing": "must be a time such as 2030-12-31T23:59:00Z",
    "datetime_from_date_parsing": "must be a time such as 2030-12-31T23:59:00Z",
    "datetime_object_invalid": "must be a time such as 2030-12-31T23:59:00Z",
    "timezone_aware": "must be a time with its zone, such as 2030-12-31T23:59:00Z",
    "time_delta_parsing": "must be a duration",
    "string_unicode": "must be Unicode text",
    "string_sub_type": "must be a string",
    "string_pattern_mismatch": "does not have the expected format",
    "recursion_loop": "is nested too deeply",
    "greater_than_equal": lambda ctx: f"must be at least {_number(ctx['ge'])}",
    "greater_than": lambda ctx: f"must be more than {_number(ctx['gt'])}",
    "less_than_equal": lambda ctx: f"must be at most {_number(ctx['le'])}",
    "less_than": lambda ctx: f"must be less than {_number(ctx['lt'])}",
    "string_too_short": lambda ctx: (
        f"must have at least {_counted(ctx['min_length'], 'character')}"
    ),
    "string_too_long": lambda ctx: f"must have at most {_counted(ctx['max_length'], 'character')}",
    "too_short": lambda ctx: f"must have at least {_counted(ctx['min_length'], 'item')}",
    "too_long": lambda ctx: f"must have at most {_counted(ctx['max_length'], 'item')}",
    "bytes_too_short": lambda ctx: f"must have at least {_counted(ctx['min_length'], 'byte')}",
    "bytes_too_long": lambda ctx: f"must have at most {_counted(ctx['max_length'], 'byte')}",
    "enum": lambda ctx: f"must be one of {_listed(ctx['expected'])}",
    "literal_error": lambda ctx: f"must be one of {_listed(ctx['expected'])}",
}
# Errors of validators of this package: their text is used.
_OWN = ("value_error", "assertion_error")
_BASE64 = ("base64", "bytes_invalid_encoding")


def _listed(expected: object) -> str:
    """What pydantic expects, `'a', 'b' or 'c'`, without its quotes."""
    return str(expected).replace("'", "")


def message_for(error: Mapping[str, Any]) -> str:
    """The message for a validation error, as the detail of a problem."""
    kind = str(error["type"])
    if kind in _OWN:
        text = str(error["msg"])
        return text.partition(", ")[2] or text
    if kind.startswith(_BASE64):
        return "must be a string of base64"
    found = _WORDS.get(kind)
    if found is None:
        return "is not a valid value"
    if isinstance(found, str):
        return found
    return found(error.get("ctx", {}))
