"""Reads JSON as records of `pillarbox.wire`, ignoring unknown fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

Record = TypeVar("Record")
Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _FieldReader:
    """How one field of a record is found in JSON and read."""

    name: str
    key: str
    read: Read
    absent: Any  # what an older server means that does not send it; MISSING: the record's default


def read(kind: type[Record], value: Any) -> Record:
    """A JSON object as a record; KeyError, TypeError or ValueError if it does not match."""
    values = {}
    for each in _field_readers(kind):  # type: ignore[arg-type]  # classes can be hashed
        if each.key in value:
            values[each.name] = each.read(value[each.key])
        elif each.absent is not MISSING:
            values[each.name] = each.absent
    return kind(**values)


@cache
def _field_readers(kind: Any) -> list[_FieldReader]:
    hints = get_type_hints(kind)
    return [_field_reader(each, hints[each.name]) for each in fields(kind)]


def _field_reader(each: Field[Any], hint: Any) -> _FieldReader:
    key = each.metadata.get("alias", each.name)
    return _FieldReader(each.name, key, _reader(hint), each.metadata.get("absent", MISSING))


def _reader(hint: Any) -> Read:
    """How a value of this type is read."""
    arguments = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (_reader(each) for each in arguments if each is not NoneType)
        return lambda value: None if value is None else inner(value)
    if get_origin(hint) is Sequence:
        inner = _reader(arguments[0])
        return lambda values: tuple(inner(value) for value in values)
    if is_dataclass(hint):
        return lambda value: read(hint, value)  # type: ignore[arg-type]  # a class, not an instance
    return _PLAIN.get(hint, _same)


def _same(value: Any) -> Any:
    return value


_PLAIN: dict[Any, Read] = {UUID: UUID, datetime: datetime.fromisoformat}
