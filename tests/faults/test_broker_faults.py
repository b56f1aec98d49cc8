"""Test faults of a broker and its host: kill -9, a full disk, damage, unusable data directories."""

from __future__ import annotations

import itertools
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.data_calls import (
    RAW,
    ROWS_ONLY,
    Place,
    batches,
    columns_batch,
    fetch_request,
    find_topic,
    list_offsets,
    make_topic,
    offsets_for_bytes,
    produce_request,
    read,
    rows_batch,
    send_batch,
    values,
)
from support.plain_connection import PlainConnection

from broker_lite import errors
from broker_lite.bus import connect
from broker_lite.client.administration.admin import Admin
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.wire import fetch, produce

Make = Callable[..., LocalCluster]


def read_all(place: Place) -> list[bytes]:
    with PlainConnection(place.address) as connection:
        found: list[bytes] = []
        offset = 0
        while True:
            got = read(connection, place, offset)
            assert got.error_code == 0
            if not len(got.records):
                return found
            found += values(got.records)
            offset = batches(got.records)[-1][1].next_offset


def segment_files(broker: LocalBroker) -> list[Path]:
    return sorted(
        (Path(broker.directory) / "data").rglob("*.log"), key=lambda path: path.stat().st_size
    )[::-1]


class Writer(threading.Thread):
    """A thread that produces numbered batches on one connection until the broker has exited."""

    def __init__(self, place: Place, name: bytes) -> None:
        super().__init__(daemon=True)
        self._place, self._name = place, name
        self.acked: dict[bytes, int] = {}
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            with PlainConnection(self._place.address) as connection:
                for n in itertools.count():
                    value = b"%s-%d" % (self._name, n)
                    make = columns_batch if n % 2 else rows_batch
                    connection.send(produce_request(self._place, make([value])))
                    row = produce.decode_response(connection.receive()).topics[0].partitions[0]
                    if row.error_code == 0:
                        self.acked[value] = row.base_offset
                    if n == 100:
                        self.enough.set()
        except (EOFError, OSError):
            self.enough.set()


def test_sigkill_while_producing_loses_no_acknowledged_record(make_cluster: Make) -> None:
    running = make_cluster(1)
    broker = running.brokers[0]
    place = make_topic(running, "acked")
    acked: dict[bytes, int] = {}
    for attempt in range(3):
        writers = [Writer(place, b"%d.%d" % (attempt, n)) for n in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            assert writer.enough.wait(60)
        broker.kill()
        for writer in writers:
            writer.join(30)
            acked |= writer.acked
        broker.start()
        place = find_topic(running, "acked")
        found = read_all(place)
        assert len(set(found)) == len(found)
        assert [value for value in acked if found[acked[value]] != value] == []
    assert len(acked) >= 3 * 4 * 100
    assert "an unclean stop" in Path(broker.log).read_text()


def test_sigterm_answers_waiting_fetches_and_shuts_down_cleanly(make_cluster: Make) -> None:
    running = make_cluster(1)
    broker = running.brokers[0]
    assert "unclean" not in Path(broker.log).read_text()
    place = make_topic(running, "clean")
    with PlainConnection(place.address) as waiting, PlainConnection(place.address) as leader:
        assert send_batch(leader, place, rows_batch([b"x"]), acks=1).error_code == 0
        waiting.send(fetch_request(place, 1, max_wait_ms=30_000))
        broker.request_stop()
        told = fetch.decode_response(waiting.receive()).topics[0].partitions[0]
        assert (told.error_code, len(told.records)) == (errors.NotLeaderError.code, 0)
        broker.wait_stopped()
    broker.start()
    assert "after a clean stop" in Path(broker.log).read_text()
    assert read_all(find_topic(running, "clean")) == [b"x"]


def test_full_disk_refuses_produce_until_space_is_available(make_cluster: Make) -> None:
    running = make_cluster(1)
    broker = running.brokers[0]
    place = make_topic(running, "full")
    assert broker.pid is not None
    unlimited = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    with PlainConnection(place.address) as leader:
        kept = []
        for n in range(4):
            assert (
                send_batch(leader, place, rows_batch([b"%d" % n, bytes(100_000)])).error_code == 0
            )
            kept += [b"%d" % n, bytes(100_000)]
        # With this RLIMIT_FSIZE the kernel refuses to write past 450 kB, as on a full disk.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (450_000, unlimited[1]))
        for _ in range(3):
            refused = send_batch(leader, place, rows_batch([b"lost", bytes(100_000)]))
            assert refused.error_code == errors.StorageError.code
            assert "full" in (refused.error_message or "")
        assert send_batch(leader, place, rows_batch([b"small"])).error_code == 0
        assert values(read(leader, place, 0).records) == [*kept, b"small"]
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, unlimited)
        assert send_batch(leader, place, rows_batch([b"room"])).base_offset == 9
    broker.kill()
    broker.start()
    assert read_all(find_topic(running, "full")) == [*kept, b"small", b"room"]


def test_corrupt_batch_is_reported_and_never_delivered(make_cluster: Make) -> None:
    """The test damages the second of three batches: first its body, then its header."""
    running = make_cluster(1)
    broker = running.brokers[0]
    place = make_topic(running, "damaged")
    with PlainConnection(place.address) as leader:
        sizes = []
        for n in range(3):
            batch = rows_batch([b"%d" % n * 50] * 2)
            sizes.append(len(batch))
            assert send_batch(leader, place, batch).error_code == 0
    broker.stop()
    (log,) = segment_files(broker)[:1]
    content = bytearray(log.read_bytes())
    content[sizes[0] + 100] ^= 1
    log.write_bytes(content)
    broker.start()
    place = find_topic(running, "damaged")
    with PlainConnection(place.address) as leader:
        first = read(leader, place, 0, reader=ROWS_ONLY)
        assert (first.error_code, values(first.records)) == (0, [b"0" * 50] * 2)
        bad = read(leader, place, 2, reader=ROWS_ONLY)
        assert (bad.error_code, len(bad.records)) == (errors.CorruptMessageError.code, 0)
        step = offsets_for_bytes(leader, place, 2, 1)
        assert (step.error_code, step.end_offset) == (0, 4)
        rest = read(leader, place, 4, reader=ROWS_ONLY)
        assert values(rest.records) == [b"2" * 50] * 2
        raw = read(leader, place, 2, reader=RAW)
        assert (raw.error_code, len(raw.records)) == (0, sizes[1] + sizes[2])
    said = Path(broker.log).read_text()
    assert "topic damaged partition 0 offset 2: corrupt batch" in said
    broker.stop()
    content[sizes[0] + 16] = 99
    log.write_bytes(content)
    broker.start()
    place = find_topic(running, "damaged")
    with PlainConnection(place.address) as leader:
        for reader in (RAW, ROWS_ONLY):
            lost = read(leader, place, 2, reader=reader)
            assert lost.error_code == errors.CorruptMessageError.code
        step = offsets_for_bytes(leader, place, 2, 1)
        assert (step.error_code, step.end_offset) == (0, 4)
        assert values(read(leader, place, 4).records) == [b"2" * 50] * 2


def test_brokers_serve_produce_and_fetch_requests_during_a_zookeeper_outage(
    make_cluster: Make, tmp_path: Path
) -> None:
    """Producing, fetching and replication continue without ZooKeeper.

    * Requests that need ZooKeeper fail with a retriable error and work afterwards.
    * A hanging in-sync replica holds back acks=all, because the leader cannot shrink the ISR.
    * An offset commit of a group is either stored or not acknowledged.
    * A broker that starts without ZooKeeper waits 15 s, names the cause and exits.
    """
    running = make_cluster(2, own_zookeeper=True)
    place = make_topic(running, "steady")
    server = running.zookeeper_server
    assert server is not None
    tp = TopicPartition(place.name, 0)
    with Admin(running.bootstrap_servers) as making:
        making.create_topic("copied", 1, 2, {"min.insync.replicas": "1"})
    copied = find_topic(running, "copied")
    follower = running.brokers[1 - copied.leader]
    with (
        PlainConnection(place.address) as leader,
        PlainConnection(copied.address) as other,
        Admin(running.bootstrap_servers) as admin,
        Admin(running.bootstrap_servers, timeout_ms=2000) as hasty,
        connect(running.bootstrap_servers) as bus,
        bus.consumer(
            place.name, group="readers", start="earliest", auto_commit_interval_ms=500
        ) as consumer,
        ThreadPoolExecutor(2) as pool,
    ):
        for topic, connection in ((place, leader), (copied, other)):
            assert send_batch(connection, topic, rows_batch([b"before"])).error_code == 0
        assert len(consumer.poll(20.0)) == 1
        consumer.commit()
        server.stop()
        waiting = pool.submit(admin.commit_offsets, "patient", {tp: 1})
        started = pool.submit(run_broker, tmp_path, running)
        with pytest.raises(errors.RetriableError):
            hasty.commit_offsets("hasty", {tp: 1})
        until = time.monotonic() + 20
        count = 1
        while time.monotonic() < until:
            assert send_batch(leader, place, rows_batch([b"during"])).error_code == 0
            assert send_batch(other, copied, rows_batch([b"during"])).error_code == 0
            count += 1
            assert len(consumer.poll(20.0)) == 1, "the consumer did not read without commits"
            assert read(leader, place, 0).high_watermark == count
            assert list_offsets(leader, place.name, -1).offset == count
            time.sleep(0.2)
        assert consumer.commit_error is None or consumer.commit_error.retriable
        follower.pause()
        waited = send_batch(other, copied, rows_batch([b"waits"]), timeout_ms=1000)
        assert waited.error_code == errors.RequestTimedOutError.code
        follower.resume()
        assert send_batch(other, copied, rows_batch([b"both have it"])).error_code == 0
        code, said = started.result()
        assert code == 1
        assert "[LOGBUS_COORDINATION_UNAVAILABLE]" in said and server.address in said
        server.start()
        # The commit waited for ZooKeeper, or failed with a retriable error and succeeds now.
        try:
            waiting.result(60)
        except errors.RetriableError:
            admin.commit_offsets("patient", {tp: 1})
        assert admin.committed("patient", [tp])[tp].offset == 1
        consumer.commit()
        assert consumer.committed()[tp].offset == count
        while True:
            try:
                admin.create_topic("after", 2, 1, {}, if_not_exists=True)
                break
            except errors.RetriableError:
                time.sleep(0.1)
        after = find_topic(running, "after")
        with PlainConnection(after.address) as later:
            assert send_batch(later, after, rows_batch([b"x"])).error_code == 0
    again = find_topic(running, "steady")
    assert len(read_all(again)) == count
    assert len(read_all(find_topic(running, "copied"))) == count + 2
    assert all(broker.is_running for broker in running.brokers)


# In the next tests, brokers must refuse to start.


def run_broker(tmp_path: Path, running: LocalCluster, **settings: str) -> tuple[int, str]:
    """Start a broker that must exit; return its exit code and its last output."""
    config = tmp_path / "by-hand.conf"
    lines = {"zookeeper.connect": running.zookeeper, "port": "0", "broker.id": "77"}
    lines |= {name.replace("_", "."): value for name, value in settings.items()}
    lines.setdefault("log.dir", str(tmp_path / "by-hand"))
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    command = [sys.executable, "-P", "-m", "broker_lite", "broker", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_broker_refuses_a_port_in_use(tmp_path: Path, cluster: LocalCluster) -> None:
    port = str(cluster.brokers[0].port)
    code, said = run_broker(tmp_path, cluster, port=port)
    assert code == 1
    assert "[LOGBUS_PORT_IN_USE]" in said and f"port={port}" in said


def test_broker_refuses_a_locked_data_directory(tmp_path: Path, cluster: LocalCluster) -> None:
    held = str(Path(cluster.brokers[0].directory) / "data")
    code, said = run_broker(tmp_path, cluster, log_dir=held)
    assert code == 1
    assert "[LOGBUS_DIRECTORY_LOCKED]" in said and held in said


def test_broker_refuses_the_id_of_a_live_broker(tmp_path: Path, cluster: LocalCluster) -> None:
    soon = {"zookeeper_session_timeout_ms": "1000"}
    code, said = run_broker(tmp_path, cluster, broker_id="0", **soon)
    assert code == 1
    assert "[LOGBUS_BROKER_ID_TAKEN]" in said


def test_broker_reports_an_uncreatable_data_directory(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    (tmp_path / "file").write_text("not a directory")
    code, said = run_broker(tmp_path, cluster, log_dir=str(tmp_path / "file" / "data"))
    assert code == 1
    assert "log.dir=" in said


def test_broker_refuses_data_directory_of_another_cluster(
    make_cluster: Make, tmp_path: Path
) -> None:
    first = make_cluster(1)
    place = make_topic(first, "mine")
    with PlainConnection(place.address) as leader:
        assert send_batch(leader, place, rows_batch([b"x"])).error_code == 0
    first.brokers[0].stop()
    copied = tmp_path / "other" / "broker-0" / "data"
    shutil.copytree(Path(first.brokers[0].directory) / "data", copied)
    with pytest.raises(errors.InconsistentClusterIdError):
        make_cluster(1, directory=tmp_path / "other")
    assert segment_files(first.brokers[0])[0].stat().st_size == next(
        path.stat().st_size for path in copied.rglob("*.log") if path.stat().st_size
    )


def test_broker_removes_files_of_topic_deleted_while_it_was_down(make_cluster: Make) -> None:
    settings = {"stray.retention.ms": "0"}
    running = make_cluster(2, config=settings)
    place = make_topic(running, "goes")
    broker = next(b for b in running.brokers if b.id == place.leader)
    other = next(b for b in running.brokers if b.id != place.leader)
    assert any(place.topic_id in str(path) for path in segment_files(broker))
    broker.stop()
    with Admin(other.endpoint) as admin:
        while True:
            try:
                admin.delete_topic("goes")
                break
            except errors.RetriableError:
                time.sleep(0.05)
    broker.start()
    while any(place.topic_id in str(path) for path in segment_files(broker)):
        time.sleep(0.05)
