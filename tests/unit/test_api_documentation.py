"""The API's reference page says what the API has, and no more."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pillarbox.accept.suppressions import COLUMNS
from pillarbox.api import openapi
from pillarbox.api.bodies import SMALL
from pillarbox.api.dlq_models import MAX_PAGE_SIZE as MAX_DEAD_LETTERS
from pillarbox.api.dlq_models import (
    MAX_PER_CALL,
    DeadLetterQuery,
    Reprocess,
)
from pillarbox.api.listing import SYNONYMS, MessageQuery
from pillarbox.api.new_message import MAX_BATCH_SIZE, NewAttachment, NewMessage
from pillarbox.api.pagination import MAX_PAGE_SIZE
from pillarbox.api.problem_types import TYPES
from pillarbox.api.protocol import MAX_HEAD_BYTES
from pillarbox.api.suppression_files import MAX_BYTES, MAX_LINES
from pillarbox.api.suppressions import SuppressionQuery
from pillarbox.api.v1 import description
from pillarbox.lifecycle.set_aside_tokens import MAX_COUNTED
from pillarbox.model.suppression import SuppressionReason
from pillarbox.settings import SPECS
from pillarbox.store import dlq
from pillarbox.store.message_pages import LOOKED_AT
from pillarbox.store.webhook_log import MAX_REPLAYED
from pillarbox.wire.dlq import DeadLetterSummary, Reprocessed

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "http.md").read_text("utf-8")


def words(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def section(title: str) -> str:
    found = re.search(rf"^### {title}$(.*?)(?=^##+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def test_every_operation_is_documented_with_its_scopes() -> None:
    said = {
        (operation, tuple(words(scopes)))
        for operation, scopes in re.findall(
            r"^\| `([A-Z]+ /[^`]*)` \| ([^|]*) \|", section("Operations"), re.MULTILINE
        )
    }
    told = {
        (
            f"{method.upper()} {path}",
            tuple(words(", ".join(f"`{one}`" for need in it["security"] for one in need["key"]))),
        )
        for path, methods in description()["paths"].items()
        for method, it in methods.items()
    }
    assert said == told


def test_every_field_of_a_mail_is_documented() -> None:
    names = description()["components"]["schemas"]["NewMessage"]["properties"].keys()
    fields = (REFERENCE / "fields.md").read_text("utf-8")
    assert names | NewAttachment.model_fields.keys() <= words(section("Sending")) | words(fields)
    assert len(names) == len(NewMessage.model_fields)


def test_every_filter_is_documented() -> None:
    names = {one.alias or name for name, one in MessageQuery.model_fields.items()}
    assert names | SYNONYMS.keys() <= words(section("Listing"))


def test_everything_about_dead_letters_is_documented() -> None:
    asked = {**DeadLetterQuery.model_fields, **Reprocess.model_fields}
    told = {one.name for kind in (Reprocessed, DeadLetterSummary) for one in fields(kind)}
    said = section("Dead letters")
    assert {one.alias or name for name, one in asked.items()} | told - {"dry_run"} <= words(said)
    assert f"1 to {MAX_DEAD_LETTERS}" in said
    assert f"1 to {MAX_PER_CALL}" in said
    assert f"{dlq.LOOKED_AT:,}" in said
    assert f"{dlq.COUNTED:,}" in said


def test_everything_about_suppressions_is_documented() -> None:
    said = section("Suppressions")
    assert {*SuppressionQuery.model_fields, *SuppressionReason, ",".join(COLUMNS)} <= words(said)
    assert f"{MAX_LINES:,}" in said
    assert f"{MAX_BYTES // 2**20} MiB" in said


@pytest.mark.parametrize("name", TYPES)
def test_every_problem_is_documented(name: str) -> None:
    assert f"| `/problems/{name}` | {TYPES[name].status} |" in (
        REFERENCE / "problems.md"
    ).read_text("utf-8")


def test_limits_are_documented_with_their_values() -> None:
    limits = section("Limits")
    for name, spec in SPECS.items():
        if name.startswith("http_") and name != "http_hosts":
            assert f"`{name}`" in limits, name
            number = re.match(r"\d+", spec.default)
            assert number
            assert f"({number[0]}" in limits, name
    assert f"{MAX_HEAD_BYTES // 1024} KiB" in limits
    assert f"{SMALL // 1024} KiB" in limits
    assert f"{LOOKED_AT:,} messages" in section("Listing")
    assert f"1 to {MAX_PAGE_SIZE}" in section("Listing")
    assert f"up to {MAX_BATCH_SIZE}" in section("Batches")


def test_descriptions_name_the_limits_of_the_store() -> None:
    schemas = description()["components"]["schemas"]
    assert f"{MAX_REPLAYED:,}" in schemas["Replayed"]["properties"]["next_cursor"]["description"]
    assert f"{MAX_COUNTED:,}" in schemas["DeadLetterSummary"]["properties"]["tokens"]["description"]


def test_schemas_keep_their_former_names() -> None:
    """Programs generated from the description of 0.1.0 find every schema that it had."""
    schemas = description()["components"]["schemas"]
    for former, current in openapi.RENAMED_SCHEMAS.items():
        assert schemas[former]["$ref"] == f"#/components/schemas/{current}"
        assert "$ref" not in schemas[current]
