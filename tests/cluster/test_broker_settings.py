"""Test two broker settings: fetch.verify, which says for which clients the broker checks the CRC of
fetched batches, and the port of HTTP metrics and probes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.data_calls import (
    RAW,
    ROWS_ONLY,
    columns_batch,
    find_topic,
    make_topic,
    read,
    rows_batch,
    send_batch,
)
from support.patience import PATIENCE_S, until
from support.plain_connection import PlainConnection

from broker_lite.bus import connect
from broker_lite.config import BrokerConfig
from broker_lite.errors import CorruptMessageError, PortInUseError
from broker_lite.local.cluster import LocalCluster, first_free_ports
from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.server.broker import Broker
from broker_lite.server.metrics import METRICS, PREFIX
from broker_lite.storage.files import OsFiles


@pytest.mark.parametrize(
    ("mode", "refused"), [("always", {RAW, ROWS_ONLY}), ("unverified", {ROWS_ONLY}), ("never", ())]
)
def test_setting_fetch_verify_names_the_clients_for_which_the_broker_checks_crcs(
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
            # Fetch twice, because a refused request must not count as validated.
            for _ in range(2):
                got = read(leader, place, 0, reader=reader)
                expected = CorruptMessageError.code if reader in refused else 0
                assert got.error_code == expected
                assert bool(len(got.records)) is (reader not in refused)


def test_metrics_are_served_over_http(make_cluster: Callable[..., LocalCluster]) -> None:
    running = make_cluster(2, config={"metrics.port": "0"})
    place = make_topic(running, "measured")
    with PlainConnection(place.address) as leader:
        assert send_batch(leader, place, rows_batch([b"x"])).error_code == 0
        assert send_batch(leader, place, columns_batch([b"y"])).error_code == 0
        assert read(leader, place, 1, reader=ROWS_ONLY).error_code == 0
        corrupt = bytearray(rows_batch([b"z"]))
        corrupt[-1] ^= 1
        assert send_batch(leader, place, bytes(corrupt)).error_code == CorruptMessageError.code
    with (
        connect(running.bootstrap_servers) as bus,
        bus.consumer("measured", group="committing", start="earliest") as consumer,
    ):
        next(iter(consumer))
        consumer.commit()
    ports = [broker.metrics_port for broker in running.brokers]
    assert len(set(ports)) == 2 and None not in ports
    found: dict[str, list[Any]] = {}
    for port in ports:
        for family in text_string_to_metric_families(page(f"http://127.0.0.1:{port}/metrics")):
            found.setdefault(family.name, []).extend(family.samples)
    declared = {PREFIX + name: metric for name, metric in METRICS.items()}
    served = {name for name in found if name.startswith(PREFIX)}
    only_with_tls = {PREFIX + "certificate_end_seconds"}
    assert served == set(declared) - only_with_tls, "the metrics differ from their table"
    for name in served:
        for sample in found[name]:
            assert set(sample.labels) - {"le"} == set(declared[name].labels)

    def total(name: str, **labels: str) -> float:
        return sum(one.value for one in found[PREFIX + name] if one.labels == labels)

    assert total("requests", api="produce") == 3
    assert total("request_errors", api="produce", error=CorruptMessageError.name) == 1
    assert total("transcoded_batches", **{"from": "columns", "to": "rows"}) == 1
    received = [one for one in found["logbus_received_records"] if one.value]
    assert [(one.labels["topic"], one.value) for one in received] == [("measured", 2)]
    counts = {
        one.name: one.value
        for name in (
            "logbus_append_duration_seconds",
            "logbus_offset_commit_duration_seconds",
            "logbus_zookeeper_request_duration_seconds",
        )
        for one in found[name]
        if one.name.endswith("_count") and one.value
    }
    assert len(counts) == 3, counts
    assert sum(one.value for one in found["logbus_leader_elections"]) == 1
    joined = [one for one in found["logbus_group_rebalances"] if one.labels == {"reason": "joined"}]
    assert sum(one.value for one in joined) == 1
    assert "process_resident_memory_bytes" in found
    assert page(f"http://127.0.0.1:{ports[0]}/livez") == "ok\n"
    assert json.loads(page(f"http://127.0.0.1:{ports[0]}/readyz")) == {"ready": True, "reasons": []}


def test_broker_without_zookeeper_is_alive_but_not_ready(tmp_path: Path) -> None:
    config = {"metrics.port": "0", "zookeeper.session.timeout.ms": "2000"}
    with LocalCluster(1, directory=tmp_path, config=config) as running:
        address = f"http://127.0.0.1:{running.brokers[0].metrics_port}"
        assert unready(address) == []
        assert running.zookeeper_server is not None
        running.zookeeper_server.stop()
        until(lambda: "no connection to ZooKeeper" in unready(address), what="the reason")
        assert page(f"{address}/livez") == "ok\n"


def test_broker_without_metrics_port_does_not_import_the_library_for_metrics(
    make_cluster: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import of the library would delay each start by 66 ms."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    log = make_cluster(1).brokers[0].log.read_text("utf-8")
    imported = {line.rpartition("|")[2].strip() for line in log.splitlines()}
    assert "broker_lite.server.metrics" in imported
    assert not {name for name in imported if name.startswith(("prometheus_client", "h11"))}


def test_broker_whose_metrics_port_is_in_use_names_the_port_and_the_remedy(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        config = BrokerConfig(port=0, log_dir=str(tmp_path), metrics_port=port)
        with pytest.raises(PortInUseError) as refused:
            await Broker(config).start()
        assert f"metrics.port={port}: " in refused.value.message
        assert "set metrics.port to another number" in refused.value.message

    with socket.create_server(("127.0.0.1", 0)) as taken:
        asyncio.run(asyncio.wait_for(main(taken.getsockname()[1]), PATIENCE_S))


class HeldFiles(OsFiles):
    """The real file system, in which the sync of a folder waits for ``is_released``. The start of a
    data directory and its clean shutdown sync the folder.
    """

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.is_released = threading.Event()

    def sync_dir(self, path: str) -> None:
        self.is_held.set()
        assert self.is_released.wait(PATIENCE_S)
        super().sync_dir(path)


def test_starting_or_stopping_broker_is_alive_and_names_why_it_is_not_ready(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = HeldFiles()
    (port,) = first_free_ports("127.0.0.1", 21300, 1)
    address = f"http://127.0.0.1:{port}"
    first, second = (
        BrokerConfig(
            port=0,
            log_dir=str(tmp_path / name),
            zookeeper_connect=f"{zookeeper.address}/{tmp_path.name}/logbus",
            metrics_port=metrics_port,
        )
        for name, metrics_port in (("first", -1), ("second", port))
    )

    def check_recovering() -> None:
        assert files.is_held.wait(PATIENCE_S)
        assert unready(address) == [
            "recovering",
            "not registered in ZooKeeper",
            "not accepting connections",
        ]
        assert page(f"{address}/livez") == "ok\n"
        assert "logbus_ready 0.0" in page(f"{address}/metrics")
        files.is_released.set()
        until(lambda: unready(address)[0] == "not registered in ZooKeeper", what="the reason")
        assert "logbus_ready 0.0" in page(f"{address}/metrics")

    def check_stopping() -> None:
        assert files.is_held.wait(PATIENCE_S)
        assert {"draining", "not accepting connections"} <= {*unready(address)}
        assert page(f"{address}/livez") == "ok\n"
        assert "logbus_ready 0.0" in page(f"{address}/metrics")

    async def main() -> None:
        holder = Broker(first)
        await holder.start()
        monkeypatch.setattr("broker_lite.server.broker.OsFiles", lambda: files)
        broker = Broker(second)
        start = asyncio.create_task(broker.start())
        try:
            await asyncio.to_thread(check_recovering)
        finally:
            files.is_released.set()
            # The second broker registers when the first, which has the same id, has left.
            await holder.stop()
            await start
            assert await asyncio.to_thread(unready, address) == []
            assert "logbus_ready 1.0" in await asyncio.to_thread(page, f"{address}/metrics")
            files.is_held.clear()
            files.is_released.clear()
            stop = asyncio.create_task(broker.stop())
            try:
                await asyncio.to_thread(check_stopping)
            finally:
                files.is_released.set()
                await stop

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_draining_broker_answers_probes_and_says_that_it_is_draining(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    config = {"metrics.port": "0", "zookeeper.session.timeout.ms": "30000"}
    running = make_cluster(2, config=config)
    with connect(running.bootstrap_servers) as bus:
        bus.create_topic("drained", partitions=1, replication_factor=2)
        with bus.producer() as producer:
            producer.send("drained", b"x").result()
        controller = running.brokers[bus.admin.cluster().controller_id]
    (broker,) = (each for each in running.brokers if each is not controller)
    address = f"http://127.0.0.1:{broker.metrics_port}"
    assert unready(address) == []
    # Without the controller, no other broker takes over the partition, so the drain lasts.
    controller.pause()
    try:
        broker.request_stop()
        until(lambda: unready(address) == ["draining"], what="the reason")
        assert page(f"{address}/livez") == "ok\n"
        assert "logbus_ready 0.0" in page(f"{address}/metrics")
    finally:
        controller.resume()
    broker.wait_stopped()
    assert "moved leadership to other brokers" in broker.log.read_text("utf-8")


def unready(address: str) -> list[str]:
    """Return the reasons with which /readyz at this address answers 503; none if it answers
    200.
    """
    try:
        page(f"{address}/readyz")
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return list(json.loads(error.read())["reasons"])
    return []


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        content: str = answer.read().decode()
    return content
