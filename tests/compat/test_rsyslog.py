"""Test rsyslog's output module omkafka, unchanged, from its Debian package.

rsyslog follows a file, as a log shipper does, and sends its lines as records, which Spark reads.
Each run ends when the records are in the topic.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.client_programs import Note
from support.log_shipper import FIRST_LINE, rsyslog_name, shipping
from support.member_process import eventually
from support.spark_queries import Queries

from broker_lite import client
from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(200)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_rsyslog_ships_log_lines(
    codec: str, cluster: LocalCluster, bus: Bus, spark: Any, tmp_path: Path, answered: Note
) -> None:
    topic = f"rsyslog-{os.getpid()}-{codec}"
    bus.create_topic(topic, partitions=2)
    records: list[client.Record] = []
    options = {"compression.codec": codec}
    with (
        shipping(tmp_path / codec, cluster.bootstrap_servers, topic, options) as shipper,
        bus.consumer(topic, start="earliest") as consumer,
    ):

        def arrived(count: int) -> bool:
            records.extend(consumer.poll(0.2))
            return len(records) >= count

        eventually(lambda: arrived(1), lambda: shipper.said)
        lines = [f'line {n} with "quotes"' for n in range(200)]
        shipper.append(lines)
        eventually(lambda: arrived(201), lambda: shipper.said)
        assert not shipper.has_failed
    assert {record.key for record in records} == {b"app"}
    shipped = sorted(json.loads(record.value or b"")["m"] for record in records)
    assert shipped == sorted([FIRST_LINE, *lines])
    rows = Queries(spark, bus, tmp_path).read(subscribe=topic).select("key", "value").collect()
    assert sorted((bytes(row.key), bytes(row.value)) for row in rows) == sorted(
        (record.key, record.value) for record in records
    )
    asked = f"lines of a file with keys, read by Spark as columns: {codec}"
    answered(rsyslog_name(), asked, "served")
