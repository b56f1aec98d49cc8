"""Settings that change how a broker serves: whose fetches are checked, and metrics over HTTP."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from data_calls import RAW, ROWS_ONLY, find_topic, make_topic, read, rows_batch, send_batch
from plain_connection import PlainConnection

from broker_lite.errors import CorruptMessageError
from broker_lite.local.cluster import LocalCluster


@pytest.mark.parametrize(
    ("mode", "refused"), [("always", {RAW, ROWS_ONLY}), ("unverified", {ROWS_ONLY}), ("never", ())]
)
def test_fetch_validation_follows_the_broker_setting(
    make_cluster: Callable[..., LocalCluster], mode: str, refused: set[tuple[int, int]]
) -> None:
    running = make_cluster(1, config={"fetch.verify": mode})
    broker = running.brokers[0]
    place = make_topic(running, "checked")
    with PlainConnection(place.address) as leader:
        assert send_batch(leader, place, rows_batch([bytes(100)])).error_code == 0
    broker.stop()
    (log,) = (path for path in Path(broker.directory).glob("data/*/*.log") if path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    broker.start()
    place = find_topic(running, "checked")
    with PlainConnection(place.address) as leader:
        for reader in (RAW, ROWS_ONLY):
            # Twice: what was refused once is not taken for checked.
            for _ in range(2):
                got = read(leader, place, 0, reader=reader)
                expected = CorruptMessageError.code if reader in refused else 0
                assert got.error_code == expected
                assert bool(len(got.records)) is (reader not in refused)


def test_metrics_are_served_over_http(make_cluster: Callable[..., LocalCluster]) -> None:
    running = make_cluster(1, config={"metrics.port": "0"})
    place = make_topic(running, "measured")
    with PlainConnection(place.address) as leader:
        assert send_batch(leader, place, rows_batch([b"x"])).error_code == 0
    found = re.search(r"metrics on (http://\S+)", Path(running.brokers[0].log).read_text())
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=30) as answer:
        text = answer.read().decode()
    assert 'logbus_requests_total{kind="produce"} 1' in text
    assert "logbus_partitions 1" in text
    assert "logbus_flush_ms_count" in text
    assert "logbus_loop_blocked_max_ms" in text
