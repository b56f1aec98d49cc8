"""Tests of client options: logbus's names, Kafka's names, and refusal of unknown names."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from broker_lite.bus.blocking import Bus
from broker_lite.client.options import CONSUMER_ARGUMENTS, build, check_names
from broker_lite.config import ConsumerConfig, ProducerConfig
from broker_lite.errors import InvalidConfigError


def test_options_accept_names_of_logbus_and_of_kafka() -> None:
    ours = build(ProducerConfig, {"batch_bytes": 5, "compression": "lz4"}, {})
    kafkas = build(ProducerConfig, {"batch_size": 5, "compression_type": "lz4"}, {})
    assert ours == kafkas
    assert build(ConsumerConfig, {"auto_offset_reset": "earliest"}, {}).start == "earliest"


def test_unknown_option_suggests_the_nearest_name() -> None:
    with pytest.raises(InvalidConfigError, match="did you mean 'linger_ms'"):
        build(ProducerConfig, {"linger": 5}, {})
    with pytest.raises(InvalidConfigError, match="did you mean 'fetch_max_wait_ms'"):
        check_names({"fetch_max_wait": 1})


def test_misspelt_consumer_argument_suggests_the_argument() -> None:
    bus = Bus("localhost:1", client_id="c", options={})
    with pytest.raises(InvalidConfigError, match="'grup'; did you mean 'group'"):
        bus.consumer("t", grup="g")
    with pytest.raises(InvalidConfigError, match="'on_asign'; did you mean 'on_assign'"):
        bus.consumer("t", group="g", on_asign=print)
    taken = {
        row.name
        for call in (Bus.consumer, Bus.create_message_streams)
        for row in inspect.signature(call).parameters.values()
        if row.kind is row.KEYWORD_ONLY
    }
    assert set(CONSUMER_ARGUMENTS) == (taken - {"session_timeout_ms"}) | {"group_id"}


@pytest.mark.parametrize(
    "options",
    [
        {"linger_ms": "soon"},
        {"linger_ms": True},
        {"linger_ms": -1},
        {"idempotence": 3},
        {"client_id": 3},
        {"client_id": "\udcff"},
        {"acks": 2},
        {"batch_bytes": 1, "batch_size": 2},
        {"acks": "1", "idempotence": True},
        {"delivery_timeout_ms": 1, "linger_ms": 5},
        {"compression": "gzip"},
    ],
)
def test_invalid_option_value_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        build(ProducerConfig, options, {})


def test_invalid_acks_error_lists_the_choices() -> None:
    with pytest.raises(InvalidConfigError, match="acks='3': give one of 0, 1, all"):
        build(ProducerConfig, {"acks": 3}, {})


@pytest.mark.parametrize(("given", "kept"), [(-1, "all"), ("all", "all"), (1, "1"), (0, "0")])
def test_acks_values_are_normalised(given: Any, kept: str) -> None:
    config = build(ProducerConfig, {"acks": given}, {})
    assert config.acks == kept
    assert config.idempotence == (kept == "all")


def test_numeric_and_boolean_options_accept_text() -> None:
    config = build(ProducerConfig, {"linger_ms": "7", "idempotence": "false"}, {})
    assert (config.linger_ms, config.idempotence) == (7, False)
    assert build(ProducerConfig, {"compression": None}, {}).compression == "none"


def test_connect_options_are_defaults_of_producers_and_consumers() -> None:
    base = {"client_id": "c", "linger_ms": 9, "start": "earliest"}
    assert build(ProducerConfig, {}, base).linger_ms == 9
    assert build(ProducerConfig, {"linger_ms": 1}, base).linger_ms == 1
    assert build(ConsumerConfig, {}, base).start == "earliest"


def test_misspelt_security_option_of_connect_suggests_the_nearest_name() -> None:
    with pytest.raises(InvalidConfigError, match="'sasl_user'; did you mean 'sasl_username'"):
        check_names({"sasl_user": "alice"})
