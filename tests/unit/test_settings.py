"""Settings: where each value comes from, what is refused, and that secrets stay secret."""

from __future__ import annotations

import base64
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.errors import SettingsError
from pillarbox.model.secret import Secret
from pillarbox.setting_kinds import duration, key_bytes, show_duration, show_size, size
from pillarbox.setting_sources import PREFIX
from pillarbox.settings import SPECS, Settings, load

ENV_NAMES = {PREFIX + name.upper(): name for name in SPECS}
SHORT_NAMES = {spec.short: name for name, spec in SPECS.items() if spec.short}
HEX = "ab" * 32
B64 = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no pillarbox.toml of the developer's


def problems(env: dict[str, str], **kwargs: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(env, **kwargs)  # type: ignore[arg-type]
    return str(caught.value)


def test_defaults_are_those_of_the_table() -> None:
    settings = load({})
    assert settings == Settings()
    assert (settings.window, settings.claim_limit) == (100, 100)
    assert settings.worker_lease == 60
    assert settings.worker_bytes_in_flight == 64 * 2**20
    assert settings.retention_content == 30 * 86400
    assert settings.database_url is None
    assert settings.secret_keys == ()


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text("pool_min = 2\npool_max = 20\nworker_pipeline = 3\n")
    env = {"PILLARBOX_POOL_MAX": "30", "PILLARBOX_WORKER_PIPELINE": "4"}
    settings = load(env, overrides={"worker_pipeline": 5, "retention_batch": None})
    assert (settings.pool_min, settings.pool_max, settings.worker_pipeline) == (2, 30, 5)
    assert settings.retention_batch == 1000
    sources = {row.name: row.source for row in settings.describe()}
    assert sources["pool_min"] == "pillarbox.toml"
    assert sources["pool_max"] == "env PILLARBOX_POOL_MAX"
    assert sources["worker_pipeline"] == "flag"
    assert sources["http"] == "default"


def test_file_is_found_by_argument_then_by_variable(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('http = "0.0.0.0:1"')
    two.write_text('http = "0.0.0.0:2"')
    assert load({"PILLARBOX_CONFIG": str(two)}).http == "0.0.0.0:2"
    assert load({"PILLARBOX_CONFIG": str(two)}, one).http == "0.0.0.0:1"


@pytest.mark.parametrize("short", sorted(SHORT_NAMES))
def test_short_names_work_and_prefixed_ones_win(short: str) -> None:
    name = SHORT_NAMES[short]
    values = {
        "worker_enabled": ("no", "yes"), "smtp_from_address": ("a@b.example", "c@d.example"),
        "database_url": ("dbname=a", "postgresql:///b"), "lifecycle_keys": (HEX, f"{B64}@2030-01-31"),
        "lifecycle_channel": ("a", "b"), "lifecycle_queue": ("a", "b"),
    }  # fmt: skip
    low, high = values.get(name, ("11", "22"))
    only_short, both = load({short: low}), load({short: low, f"PILLARBOX_{name.upper()}": high})
    assert getattr(only_short, name) == SPECS[name].kind.read(low)
    assert getattr(both, name) == SPECS[name].kind.read(high)


def test_short_names_are_shared_so_empty_means_not_set() -> None:
    assert load({"SMTP_HOST": ""}).smtp_host is None
    assert "PILLARBOX_DATABASE_URL is empty" in problems({"PILLARBOX_DATABASE_URL": ""})


def test_all_problems_are_reported_at_once() -> None:
    text = problems(
        {"PILLARBOX_WORKER_LEASE": "soon", "PILLARBOX_HTP": "x", "PILLARBOX_LOG_FORMAT": "jsn"},
        overrides={"pool_min": 9, "pool_maximum": 3},
    )
    assert "PILLARBOX_WORKER_LEASE is 'soon': must be a duration such as" in text
    assert "at least 1s" in text
    assert "PILLARBOX_HTP is not a setting; did you mean PILLARBOX_HTTP?" in text
    assert "one of auto, console, json; did you mean json?" in text
    assert "pool_maximum is not a setting; did you mean pool_max?" in text
    assert "pool_min is 9, more than pool_max, which is 8" in text
    assert len(text.splitlines()) == 5


def test_unknown_key_in_the_file_is_named_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text("worker_concurency = 3\n[smtp]\nhost = 'x'\n")
    text = problems({})
    assert (
        "worker_concurency in pillarbox.toml is not a setting; did you mean worker_concurrency?"
        in text
    )
    assert "not in a [table]" in text


@pytest.mark.parametrize("content", [b"http = ", b"\xff\xfe"])
def test_unreadable_files_are_clear_errors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    assert "bad.toml is not valid TOML" in problems({}, file=tmp_path / "bad.toml")
    assert "none.toml cannot be read" in problems({"PILLARBOX_CONFIG": str(tmp_path / "none.toml")})


def test_variables_that_kubernetes_injects_are_not_ours() -> None:
    env = {
        "PILLARBOX_SERVICE_HOST": "10.0.0.1",
        "PILLARBOX_SERVICE_PORT_HTTP": "8025",
        "PILLARBOX_PORT": "tcp://10.0.0.1:8025",
        "PILLARBOX_PORT_8025_TCP_ADDR": "10.0.0.1",
        "SMTP_PORT": "tcp://10.0.0.2:25",
    }
    assert load(env) == Settings()
    assert "PILLARBOX_PORT is not a setting" in problems({"PILLARBOX_PORT": "8025"})


@pytest.mark.parametrize("word", ["true", "1", "yes", "TRUE", " on "])
def test_words_for_true(word: str) -> None:
    assert load({"EMAIL_WORKER_ENABLED": word}).worker_enabled is True


@pytest.mark.parametrize("word", ["false", "0", "no", "No", "off"])
def test_words_for_false(word: str) -> None:
    assert load({"EMAIL_WORKER_ENABLED": word}).worker_enabled is False


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [
        ("5s", 5),
        ("500ms", 0.5),
        ("10m", 600),
        ("2h", 7200),
        ("7d", 604800),
        ("3", 3),
        (2.5, 2.5),
        (4, 4),
    ],
)
def test_durations(given_: object, seconds: float) -> None:
    assert load({}, overrides={"worker_poll_interval": given_}).worker_poll_interval == seconds


@pytest.mark.parametrize(
    "wrong", ["-1", "5 weeks", "nan", "inf", "1e3", "", "٣s", "9" * 30, True, [], {}]
)
def test_wrong_durations(wrong: object) -> None:
    assert "worker-poll-interval" in problems({}, overrides={"worker_poll_interval": wrong})


def test_retention_can_be_off() -> None:
    settings = load({"PILLARBOX_RETENTION_CONTENT": "off"})
    assert settings.retention_content is None
    assert (
        next(row.value for row in settings.describe() if row.name == "retention_content") == "off"
    )
    assert "PILLARBOX_WORKER_LEASE" in problems({"PILLARBOX_WORKER_LEASE": "off"})


@pytest.mark.parametrize(
    ("given_", "count"),
    [("64MiB", 2**26), ("10MB", 10**7), ("2097152", 2**21), (2**22, 2**22), ("2 gib", 2**31)],
)
def test_sizes(given_: object, count: int) -> None:
    assert load({}, overrides={"worker_bytes_in_flight": given_}).worker_bytes_in_flight == count


@given(st.integers(1, 10**10))
def test_a_shown_duration_reads_back(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert duration().read(show_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


@given(st.integers(0, 2**40))
def test_a_shown_size_reads_back(count: int) -> None:
    assert size(0).read(show_size(count)) == count


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("worker_concurrency", "0"),
        ("worker_concurrency", True),
        ("worker_concurrency", "1_0"),
        ("utilisation_alert", "1.1"),
        ("utilisation_alert", "nan"),
        ("smtp_port", "65536"),
        ("smtp_host", "mail.example:25"),
        ("smtp_from_address", "Name <a@b.example>"),
        ("smtp_from_name", "a\r\nBcc: x@y.example"),
        ("http", "8025"),
        ("http", "localhost:70000"),
        ("database_url", "mysql://x"),
        ("log_level", "loud"),
        ("notify", "perhaps"),
        ("data_dir", []),
        ("secret_keys", {"a": 1}),
    ],
)
def test_wrong_values_name_the_setting_and_what_is_allowed(name: str, wrong: object) -> None:
    text = problems({}, overrides={name: wrong})
    assert name.replace("_", "-") in text
    assert SPECS[name].kind.allowed in text


def test_claims_never_exceed_the_window() -> None:
    assert Settings(worker_concurrency=2, worker_pipeline=3, worker_batch_size=50).claim_limit == 6
    assert Settings(worker_batch_size=7).claim_limit == 7


@pytest.mark.parametrize(
    ("http", "address"),
    [("127.0.0.1:8025", ("127.0.0.1", 8025)), ("[::1]:80", ("::1", 80)), ("web:0", ("web", 0))],
)
def test_http_address(http: str, address: tuple[str, int]) -> None:
    assert load({"PILLARBOX_HTTP": http}).http_address == address


def test_keys_are_hex_or_base64_newest_first() -> None:
    settings = load(
        {"PILLARBOX_SECRET_KEYS": f"{HEX}, {B64.rstrip('=')}", "PILLARBOX_REDACTION_KEY": B64}
    )
    assert [key_bytes(key) for key in settings.secret_keys] == [
        bytes.fromhex(HEX),
        bytes(range(32)),
    ]
    assert settings.redaction_key == Secret(B64)


@given(st.binary(min_size=32, max_size=32))
def test_every_way_to_write_a_key_gives_the_same_bytes(raw: bytes) -> None:
    written = [raw.hex(), base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()]
    assert {key_bytes(Secret(one)) for one in written} == {raw}


@pytest.mark.parametrize("wrong", ["hunter2-hunter2", HEX[:-1] + "Z", f"{HEX},", ",", "ключ"])
def test_a_wrong_key_is_refused_without_showing_it(wrong: str) -> None:
    for name in ("PILLARBOX_SECRET_KEYS", "PILLARBOX_SECRET_KEY"):  # the second is a misspelt name
        text = problems({name: wrong})
        assert name in text
        assert "hunter2" not in text
        assert HEX[:8] not in text


@pytest.mark.req("REQ-QUEUE-N003")
def test_secrets_show_nowhere() -> None:
    url = "postgresql://app:hun@ter2/x@db:5432/mail?sslpassword=hunter3"
    env = {
        "PILLARBOX_DATABASE_URL": url,
        "PILLARBOX_SECRET_KEYS": HEX,
        "PILLARBOX_REDACTION_KEY": HEX,
    }
    settings = load(env)
    rows = {row.name: row for row in settings.describe()}
    assert settings.database_url == url
    assert rows["database_url"].value == "postgresql://app:****@db:5432/mail?sslpassword=****"
    assert rows["secret_keys"].value == rows["redaction_key"].value == "****"
    shown = repr(settings) + str(rows)
    assert not any(secret in shown for secret in ("ter2", "hunter3", HEX[:8]))
    assert "hunter2" not in problems({"PILLARBOX_DATABASE_URL": "mysql://a:hunter2@b"})


def test_every_setting_is_described_and_shows_its_default() -> None:
    rows = load({}).describe()
    assert [row.env for row in rows] == list(ENV_NAMES)
    assert all(row.value == row.default and row.help.endswith(".") and row.why for row in rows)


@given(st.dictionaries(st.sampled_from(sorted(ENV_NAMES)), st.text(max_size=20), max_size=4))
def test_any_text_is_either_read_or_refused_clearly(env: dict[str, str]) -> None:
    error = ""
    try:
        load(env)
    except SettingsError as caught:
        error = str(caught)
    assert all(any(name in line for name in [*env, "pool_min"]) for line in error.splitlines())


@pytest.mark.parametrize(
    ("given_as", "url"),
    [
        ("dbname=mailroom", "postgresql:///mailroom"),
        ("dbname='my mail' host=/tmp port=5433", "postgresql:///my%20mail?host=%2Ftmp&port=5433"),
        ("host=db user=app password=s3cret", "postgresql:///?host=db&user=app&password=s3cret"),
    ],
)
def test_connection_strings_of_libpq(given_as: str, url: str) -> None:
    settings = load({"MAILROOM_DATABASE_URL": given_as})
    assert settings.database_url == url
    assert "s3cret" not in str(settings.describe())


@pytest.mark.parametrize("wrong", ["mailroom", "dbname=", "dbname='x", "=x", "a b=c"])
def test_what_is_no_connection_string(wrong: str) -> None:
    assert "MAILROOM_DATABASE_URL" in problems({"MAILROOM_DATABASE_URL": wrong})


def test_the_collectors_own_names_and_units() -> None:
    settings = load({"MAILROOM_BATCH_TIMEOUT": "5000", "MAILROOM_HEALTHCHECK_INTERVAL": "1500"})
    assert (settings.lifecycle_batch_timeout, settings.lifecycle_healthcheck) == (5.0, 1.5)
    assert load({"PILLARBOX_LIFECYCLE_BATCH_TIMEOUT": "2s"}).lifecycle_batch_timeout == 2.0


def test_keys_that_retire() -> None:
    first, second = load({"MAILROOM_SECRET_KEY": f"{HEX}, {B64}@2030-01-31"}).lifecycle_keys
    assert (first.until, second.until) == (None, date(2030, 1, 31))
    wrong = problems({"PILLARBOX_LIFECYCLE_KEYS": f"{HEX}@soon"})
    assert "its day of expiry" in wrong
    assert HEX not in wrong
