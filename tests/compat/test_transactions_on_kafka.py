"""Run the tests of logbus's transactional client on a real Apache Kafka broker.

The tests use both versions of Kafka's transaction protocol.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import row_batches
from support.kafka_broker import kafka_running
from support.transaction_suite import *  # noqa: F403

from broker_lite.bus import Bus, connect
from broker_lite.record import arrow

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["2", "1"], ids=lambda level: f"version-{level}")
def servers(
    class_path: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[str]:
    feature = f"transaction.version={request.param}"
    with kafka_running(class_path, tmp_path_factory.mktemp("kafka"), feature) as address:
        yield address


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "encode", row_batches.encode_rows)


@pytest.fixture
def bus(servers: str) -> Iterator[Bus]:
    with connect(servers) as bus:
        yield bus
