"""Settings: what can't be is refused where it is said, with the name of who said it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic import App, brokers, settings
from agentic.errors import ConfigurationError


def refused(environ: dict[str, str] | None = None, **given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings.resolve({"name": "shop", **given}, environ or {})
    message = str(caught.value)
    assert "\n" not in message
    return message


#: variable -> values that are none; what a setting takes is looked at before anything uses it.
BAD = {
    "AGENTIC_NAME": ["", "a b", "a\n"],
    "AGENTIC_BROKER": ["", "localhost:9092", "kafak://localhost"],
    "AGENTIC_STATE_DIR": ["", "a\0b"],
    "AGENTIC_DELIVERY": ["", "twice"],
    "AGENTIC_COMMIT_INTERVAL": ["", "soon", "-1", "0", "1e30", "nan", "9" * 20, "9" * 400, "1000000d"],
    "AGENTIC_TOPIC_PARTITIONS": ["", "0", "x", "9" * 5_000],
    "AGENTIC_CREATE_TOPICS": ["perhaps"],
    "AGENTIC_DEAD_LETTER": ["a/b"],
    "AGENTIC_KAFKA": ["", "{", "[1]", "[" * 100_000, '{"debug": null}', '{"debug": ["all"]}', '{"": "all"}'],
    "AGENTIC_LOG": ["", "xml"],
}


@pytest.mark.parametrize(("variable", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
def test_a_bad_value_in_the_environment_is_refused_with_the_variables_name(variable: str, text: str) -> None:
    message = refused({variable: text})
    assert message.startswith(f"environment variable {variable}: ")
    assert len(message) < 300


@given(st.sampled_from(settings.names()), st.text())
def test_no_text_at_all_makes_a_setting_fail_in_another_way(name: str, text: str) -> None:
    try:
        settings.resolve({"name": "shop"}, {}, {name: text})
    except ConfigurationError as error:
        assert name in str(error)


def test_a_duration_that_no_clock_can_count_is_refused() -> None:
    assert "must be at most 36,500 days" in refused(commit_interval=timedelta.max)
    assert settings.resolve({"name": "shop", "commit_interval": settings.LONGEST}, {})


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_stands_for_another_directory_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"setting 'name': .*: a directory within state_dir is named for it"):
        App(name)


@pytest.mark.parametrize("name", [5, None, ["shop"], b"shop"])
def test_a_name_that_is_no_string_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^setting 'name': .* must be str"):
        App(name)


@pytest.mark.parametrize("value", [[1], {"a": 1}, None, b"x", object()])
def test_a_kafka_property_that_is_no_scalar_is_refused_by_name_and_not_shown(value: Any) -> None:
    message = refused(kafka={"sasl.password": value})
    assert "setting 'kafka': property 'sasl.password' is a " in message
    assert repr(value) not in message.replace(type(value).__name__, "") or value is None


def test_a_kafka_property_whose_name_is_no_string_is_refused() -> None:
    assert "5 is no property's name" in refused(kafka={5: "x"})


def test_a_kafka_property_may_be_a_function() -> None:
    assert settings.resolve({"name": "shop", "kafka": {"oauth_cb": print}}, {})


def test_a_password_in_a_broken_json_is_not_shown() -> None:
    assert "hush" not in refused({"AGENTIC_KAFKA": '{"sasl.password": "hush"'})
    assert "hush" not in refused({"AGENTIC_KAFKA": '["hush"]'})


def test_the_schemes_of_the_setting_are_those_that_have_a_driver() -> None:
    assert set(settings.SCHEMES) == set(brokers.DRIVERS)


def test_the_state_of_kafka_is_not_kept_where_that_of_the_embedded_log_is() -> None:
    def state_dir(given: dict[str, object], environ: dict[str, str]) -> str:
        return settings.resolve({"name": "shop", **given}, environ).state_dir

    assert state_dir({}, {}) == ".agentic/state"
    assert state_dir({"broker": "kafka://h:9092"}, {}) == ".agentic/kafka"
    assert state_dir({}, {"AGENTIC_BROKER": "kafka://h:9092"}) == ".agentic/kafka"
    assert state_dir({"broker": "kafka://h:9092"}, {"AGENTIC_BROKER": "local://log"}) == ".agentic/state"
    assert state_dir({"broker": "kafka://h:9092", "state_dir": "mine"}, {}) == "mine"
    assert state_dir({"broker": "kafka://h:9092"}, {"AGENTIC_STATE_DIR": ".agentic/state"}) == ".agentic/state"


def test_seconds_as_a_number_are_refused_with_what_to_write() -> None:
    assert "write timedelta(seconds=0.2)" in refused(commit_interval=0.2)
    assert "write timedelta" not in refused(commit_interval="soon")
