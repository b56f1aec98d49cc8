"""Test quotas on real brokers with logbus clients, kafka-python, commands and metrics."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable

import kafka.admin
import kafka.protocol.admin as admin
import pytest
from support.plain_connection import PlainConnection

from broker_lite.bus import connect
from broker_lite.cli.main import run as logbus
from broker_lite.client.fetch.range_reader import read_range
from broker_lite.client.transport.pool import Pool
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import NO_EPOCH, TopicPartition
from broker_lite.wire.calls.cluster import MetadataRequest

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return make_module_cluster(1)


@pytest.fixture
def run_quota(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = logbus(["quota", *arguments, "-b", cluster.bootstrap_servers])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def test_producer_over_its_quota_is_slowed_down_without_an_error(
    cluster: LocalCluster, run_quota: Callable[..., tuple[int, str, str]]
) -> None:
    assert run_quota("set", "producer_byte_rate", "100000", "--client-id", "greedy")[0] == 0
    with connect(cluster.bootstrap_servers) as bus:
        bus.create_topic("produced", partitions=1, replication_factor=1)
        with bus.producer(client_id="greedy", batch_bytes=50_000) as producer:
            began = time.monotonic()
            sent = [producer.send("produced", value=random.randbytes(10_000)) for _ in range(30)]
            assert [each.result(60).offset for each in sent] == list(range(30))
            # All 300 kB may be in flight together. The broker then delays the next record until the
            # rate is back at the quota.
            assert producer.send("produced", value=b"late").result(60).offset == 30
            assert time.monotonic() - began > 1.0
        with bus.producer(client_id="modest") as producer:
            assert producer.send("produced", value=b"y").result(60).offset == 31
    assert run_quota("delete", "producer_byte_rate", "--client-id", "greedy", "--yes")[0] == 0


def test_consumer_over_its_quota_still_reads_every_record(
    cluster: LocalCluster, run_quota: Callable[..., tuple[int, str, str]]
) -> None:
    assert run_quota("set", "consumer_byte_rate", "100000", "--client-id", "reader")[0] == 0
    with connect(cluster.bootstrap_servers) as bus:
        bus.create_topic("consumed", partitions=1, replication_factor=1)
        with bus.producer(batch_bytes=50_000) as producer:
            for number in range(30):
                producer.send("consumed", value=b"%d " % number + random.randbytes(10_000))
    consumer = kafka.KafkaConsumer(
        "consumed",
        bootstrap_servers=cluster.bootstrap_servers,
        client_id="reader",
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    began = time.monotonic()
    found = []
    for record in consumer:
        found.append(int(record.value.partition(b" ")[0]))
        if len(found) == 30:
            break
    assert found == list(range(30))
    assert time.monotonic() - began > 1.0
    consumer.close()
    assert run_quota("delete", "consumer_byte_rate", "--client-id", "reader", "--yes")[0] == 0


def test_range_read_over_its_quota_waits_longer_than_its_timeout(
    cluster: LocalCluster, run_quota: Callable[..., tuple[int, str, str]]
) -> None:
    """Regression: the time for which a broker throttled a Spark task counted as time without an
    answer, so that a strict quota failed the task."""
    quota = ("--client-id", "task")
    assert run_quota("set", "consumer_byte_rate", "100000", *quota)[0] == 0
    with connect(cluster.bootstrap_servers) as bus, contextlib.closing(Pool("task")) as pool:
        bus.create_topic("ranges", partitions=1, replication_factor=1)
        with bus.producer(batch_bytes=50_000) as producer:
            for _ in range(40):
                producer.send("ranges", value=random.randbytes(10_000))
        began = time.monotonic()
        found = read_range(
            TopicPartition("ranges", 0),
            bus.cluster().topic_id("ranges"),
            NO_EPOCH,
            0,
            40,
            bootstrap=cluster.bootstrap_servers,
            fetch_bytes=150_000,
            timeout_ms=400,
            pool=pool,
            local_reads=False,
        )
        assert sum(rows.row_count for rows in found) == 40
        assert time.monotonic() - began > 1.0
    assert run_quota("delete", "consumer_byte_rate", *quota, "--yes")[0] == 0


def test_client_over_its_processing_time_quota_receives_a_throttle_time(
    cluster: LocalCluster, run_quota: Callable[..., tuple[int, str, str]]
) -> None:
    arguments = ("request_percentage", "0.01", "--user", "*")
    assert run_quota("set", *arguments)[0] == 0
    waits = []
    with PlainConnection(cluster.bootstrap_servers) as connection:
        for _ in range(5000):
            answer = connection.call(MetadataRequest(None))
            waits.append(answer.throttle_time_ms)
            if waits[-1]:
                began = time.monotonic()
                connection.call(MetadataRequest(None))
                assert time.monotonic() - began >= waits[-1] / 1000 - 0.01
                break
    assert 0 < waits[-1] <= 1000
    assert run_quota("delete", *arguments[:1], *arguments[2:], "--yes")[0] == 0


def test_quota_command_lists_quotas_that_kafka_python_has_set(
    cluster: LocalCluster, run_quota: Callable[..., tuple[int, str, str]]
) -> None:
    entry = admin.AlterClientQuotasRequest.EntryData
    request = admin.AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type="user", entity_name=None)],
                ops=[entry.OpData(key="consumer_byte_rate", value=5.0, remove=False)],
            )
        ],
        validate_only=False,
    )
    request.API_VERSION = 1
    with PlainConnection(cluster.bootstrap_servers) as connection:
        answer = connection.call_library(request, admin.AlterClientQuotasResponse)
    assert [row.error_code for row in answer.entries] == [0]
    code, out, _ = run_quota("list", "-o", "json")
    assert code == 0
    (row,) = json.loads(out)
    assert row == {
        "user": "*", "client_id": None, "ip": None, "quota": "consumer_byte_rate", "value": 5.0,
    }  # fmt: skip
    code, _, err = run_quota("set", "connection_creation_rate", "5", "--user", "alice")
    assert code == 1 and "does not exist for user 'alice'; give producer_byte_rate" in err
    code, _, err = run_quota("set", "producer_byte_rate", "5")
    assert code == 2 and "name the limited clients: give --user, --client-id or --ip" in err
    code, _, err = run_quota("set", "producer_byte_rate", "0", "--user", "alice")
    assert code == 1 and "to remove the quota, delete it" in err
    delete = ("delete", "consumer_byte_rate", "--user")
    assert "--dry-run" in run_quota(*delete, "*", "--dry-run")[2]
    code, _, err = run_quota(*delete, "alice", "--yes")
    assert code == 1 and "has no quota consumer_byte_rate; list them with" in err
    assert run_quota(*delete, "alice", "--yes", "--if-exists")[0] == 0
    assert run_quota(*delete, "*", "--yes")[0] == 0
    assert "there are no quotas" in "".join(run_quota("list")[1:])
