"""What errors of PostgreSQL mean: retryable unless they prove that a value or the statement is wrong."""

from __future__ import annotations

import asyncpg
import pytest
from asyncpg.exceptions import _base

from pillarbox.errors import StoreBug, StoreDataError, StoreError, WrongDatabase
from pillarbox.store.database import translated


def raised(sqlstate: str) -> asyncpg.PostgresError:
    fields = {
        "C": sqlstate,
        "S": "ERROR",
        "M": "about reader@mail.example",
        "D": "Key (address)=(reader@mail.example)",
    }
    return asyncpg.PostgresError.new(fields | {"n": "messages_pkey"})


@pytest.mark.parametrize(
    ("sqlstate", "kind", "retryable"),
    [
        ("25006", StoreError, True),  # read-only
        ("28000", StoreError, True),  # the role may not log in
        ("28P01", StoreError, True),  # wrong password
        ("42501", StoreError, True),  # missing privilege
        ("42P05", StoreError, True),  # a pooler's prepared statement
        ("55P03", StoreError, True),  # lock timeout
        ("40001", StoreError, True),
        ("40P01", StoreError, True),
        ("53100", StoreError, True),  # disk full
        ("57014", StoreError, True),  # statement timeout
        ("57P01", StoreError, True),
        ("08006", StoreError, True),
        ("0A000", StoreError, True),  # a cached plan that no longer fits
        ("3D000", StoreError, True),
        ("XX000", StoreError, True),
        ("P0001", StoreError, True),  # a trigger of the user's own
        ("99999", StoreError, True),  # unknown to asyncpg
        ("22021", StoreDataError, False),
        ("22P05", StoreDataError, False),
        ("23505", StoreDataError, False),
        ("54000", StoreDataError, False),  # too long for an index
        ("42601", StoreBug, False),
        ("42P01", StoreBug, False),
        ("42883", StoreBug, False),
        ("3F000", StoreBug, False),
    ],
)
def test_what_a_sqlstate_means(sqlstate: str, kind: type[StoreError], retryable: bool) -> None:
    with pytest.raises(StoreError) as caught, translated():
        raise raised(sqlstate)
    error = caught.value
    assert (type(error), error.retryable, error.sqlstate) == (kind, retryable, sqlstate)
    assert "Key" not in str(error)  # the DETAIL


def test_a_data_error_names_the_constraint_and_never_the_value() -> None:
    with pytest.raises(StoreDataError) as caught, translated():
        raise raised("23505")
    assert caught.value.constraint == "messages_pkey"
    assert "messages_pkey" in str(caught.value)
    assert "reader" not in str(caught.value)
    assert caught.value.__suppress_context__  # a traceback would quote it


def test_a_value_that_cannot_be_encoded_is_a_data_error_not_an_absent_server() -> None:
    with pytest.raises(StoreDataError), translated():
        raise _base.DataError("invalid input for query argument $1: 'reader@mail.example'")
    with pytest.raises(WrongDatabase), translated():
        raise asyncpg.ClientConfigurationError("invalid port")


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(), TimeoutError(), asyncpg.InterfaceError("closed")]
)
def test_an_absent_server_is_retryable(error: Exception) -> None:
    with pytest.raises(StoreError) as caught, translated():
        raise error
    assert caught.value.retryable


def test_errors_of_our_own_functions_pass() -> None:
    with pytest.raises(asyncpg.PostgresError) as caught, translated():
        raise raised("PB404")
    assert caught.value.sqlstate == "PB404"
