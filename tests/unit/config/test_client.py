"""Tests of the value limits of client settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_lite.config import ConsumerConfig, ProducerConfig
from broker_lite.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ProducerConfig, "request_timeout_ms"),
        (ProducerConfig, "transaction_timeout_ms"),
        (ConsumerConfig, "fetch_min_bytes"),
        (ConsumerConfig, "fetch_max_wait_ms"),
        (ConsumerConfig, "fetch_max_bytes"),
        (ConsumerConfig, "partition_fetch_bytes"),
    ],
)
def test_setting_too_large_for_its_field_in_a_request_is_refused(
    make: Callable[..., Any], name: str
) -> None:
    """Regression: a value of more than 32 bits, such as 4 GiB for ``fetch.max.bytes``, ended the
    client's thread when it encoded the first request."""
    assert getattr(make(**{name: (1 << 31) - 1}), name) == (1 << 31) - 1
    with pytest.raises(InvalidConfigError):
        make(**{name: 1 << 31})
