"""Test reads of a secured broker's files, which the broker opens and passes to the reader."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.log_batches import segments_of
from support.patience import until

from broker_lite.bus import Bus, connect
from broker_lite.client.client_config import security_of_file
from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.client.fetch.range_reader import read_range
from broker_lite.client.in_place import segment_file
from broker_lite.client.in_place.segment_file import SegmentFile
from broker_lite.client.received import offsets_of
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.pool import Pool, PooledConnection
from broker_lite.client.transport.steps import FetchExchange
from broker_lite.errors import LogbusError, TopicAuthorizationError
from broker_lite.local.cluster import LocalCluster
from broker_lite.machine import machine_id
from broker_lite.model import Endpoint, TopicPartition
from broker_lite.record.arrow import Columns
from broker_lite.wire.fetch import FetchedPartition, FetchPartition, FileOffer

pytestmark = pytest.mark.real

NOBODY = 65534
"""The user and group ids of ``nobody``, who owns no file."""
ROWS, BATCH = 20_000, 1000
TP = TopicPartition("read", 0)
READER = r"""
import os, sys
from broker_lite.bus import connect
from broker_lite.machine import machine_id
servers, config, topic, path, wanted = sys.argv[1:]

def read(**options):
    found = 0
    with connect(servers, client_config=config) as bus:
        with bus.consumer(topic, start="earliest", **options) as consumer:
            while found < int(wanted):
                found += consumer.poll_arrow(20.0).num_rows
    return found

# First import all modules: on some machines nobody may not enter Python's folder.
machine_id()
read(local_reads=False)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    open(path, "rb")
except PermissionError:
    print(read(partition_fetch_bytes=300_000))"""


class Secured:
    """A secured broker with the topic ``read``, which has ROWS rows in column batches."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.admin = Path(str(cluster.client_config))
        self.servers = cluster.bootstrap_servers
        with self.connect() as bus:
            bus.create_topic(TP.topic, 1)
            with bus.producer() as producer:
                for first in range(0, ROWS, BATCH):
                    values = [b"%0200d" % n for n in range(first, first + BATCH)]
                    producer.send_columns(TP.topic, Columns(BATCH, None, pa.array(values)), 0)
            self.view = bus.admin.cluster([TP.topic])
        self.topic_id = self.view.topic_id(TP.topic)
        (self.path,) = segments_of(cluster.directory, self.topic_id)

    def connect(self, config: Path | None = None) -> Bus:
        return connect(self.servers, client_config=str(config or self.admin))

    def command(self, *words: str) -> None:
        arguments = [sys.executable, "-P", "-m", "broker_lite", *words]
        login = ["-b", self.servers, "-F", str(self.admin)]
        done = subprocess.run([*arguments, *login], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def user(self, name: str) -> Path:
        """Add a user, and return the file with the user's login."""
        password = self.folder / f"{name}.password"
        password.write_text(f"of {name}")
        self.command("user", "add", name, "--password-file", str(password))
        rows = dict(row.split("=", 1) for row in self.admin.read_text("utf-8").splitlines())
        rows |= {"sasl.username": name, "sasl.password": f"of {name}"}
        own = self.folder / f"{name}.conf"
        own.write_text("".join(f"{key}={value}\n" for key, value in rows.items()))
        own.chmod(0o600)
        return own

    def counts(self) -> tuple[float, ...]:
        """Return how many segment paths and how many open descriptors the broker sent, and how many
        tickets (permissions to get a descriptor) it refused."""
        url = f"http://127.0.0.1:{self.cluster.brokers[0].metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            rows = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines())
        name = "logbus_local_reads_total"
        outcomes = ("path", "descriptor", "refused")
        return tuple(float(rows.get(f'{name}{{outcome="{each}"}}', 0)) for each in outcomes)

    def sent(self) -> float:
        return self.counts()[1]

    def read(self, **options: Any) -> list[int]:
        """Read the topic as a Spark task does, and return the offsets."""
        pool = Pool(security=security_of_file(self.admin))
        parts = read_range(
            TP, self.topic_id, self.view.leader_epoch(TP), 0, ROWS,
            bootstrap=self.servers, pool=pool, **options,
        )  # fmt: skip
        found = [int(offset) for rows in parts for offset in offsets_of(rows)]
        pool.close()
        return found

    def fetch(
        self, config: Path, *, takes_tickets: bool = True
    ) -> tuple[FetchedPartition | LogbusError, PooledConnection]:
        """Fetch the beginning of the topic, and offer to read it from a segment file. The caller
        closes the connection, which makes the tickets (permissions to get open files) in the
        response invalid."""
        host, _, port = self.servers.rpartition(":")
        security = security_of_file(config)
        connection = PooledConnection(Endpoint(host, int(port)), "test", 30.0, security)
        row = (self.topic_id, FetchPartition(0, 0, 1 << 20))
        files = FileOffer(machine_id(), 64 << 20, takes_tickets)
        until_ms = monotonic_ms() + 30_000
        connection.send(FetchExchange(fetch_request([row], 0, 0, files=files)), until_ms)
        answer = connection.receive(until_ms)
        return answers_of(answer, {TP: self.topic_id})[TP], connection


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    # Other users may enter this folder, unlike pytest's own.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        config = {"metrics.port": "0"}
        with LocalCluster(1, directory=f"{folder}/c", secure=True, config=config) as running:
            yield Secured(running, Path(folder))


def test_consumer_reads_arrow_and_kafka_batches_from_the_files_of_a_secured_broker(
    secured: Secured,
) -> None:
    before = secured.sent()
    with secured.connect() as bus:
        with bus.consumer(TP.topic, start="earliest", partition_fetch_bytes=300_000) as consumer:
            offsets: list[int] = []
            while len(offsets) < ROWS:
                rows = consumer.poll_arrow(20.0)
                offsets += rows["offset"].to_pylist()
                assert int(rows["value"][-1].as_py()) == offsets[-1]
            assert offsets == list(range(ROWS))
        assert secured.sent() == before + 1
        bus.create_topic("rows", 1)
        with bus.producer() as producer:
            for number in range(ROWS):
                producer.send("rows", b"%0300d" % number)
        with bus.consumer("rows", start="earliest", partition_fetch_bytes=300_000) as consumer:
            values: list[bytes | None] = []
            while len(values) < ROWS:
                values += [record.value for record in consumer.poll(20.0)]
        assert values == [b"%0300d" % number for number in range(ROWS)]
    assert secured.sent() == before + 2
    assert secured.counts()[0] == 0, "the broker told a path"
    assert not [each for each in os.scandir("/proc/self/fd") if opens(each, secured.path)]


def opens(entry: os.DirEntry[str], path: Path) -> bool:
    return os.path.realpath(entry.path) == str(path)


@pytest.mark.parametrize("reads_once", [False, True])
def test_offset_range_is_read_from_a_segment_file_that_a_secured_broker_opened(
    secured: Secured, reads_once: bool
) -> None:
    before = secured.sent()
    assert secured.read(reads_once=reads_once) == list(range(ROWS))
    assert secured.sent() == before + 1


def test_user_without_read_permission_gets_neither_records_nor_a_segment_file(
    secured: Secured,
) -> None:
    row, connection = secured.fetch(secured.user("stranger"))
    connection.close()
    assert isinstance(row, TopicAuthorizationError)


def test_user_gets_no_further_segment_file_once_the_users_acl_is_deleted(secured: Secured) -> None:
    own = secured.user("leaver")
    secured.command("acl", "add", "leaver", "read", "--topic", TP.topic)
    row, first = secured.fetch(own)
    assert isinstance(row, FetchedPartition) and row.stored is not None
    assert (row.stored.path, bytes(row.records)) == ("", b"")
    held = SegmentFile(row.stored, may_pass_cache=False)
    row, second = secured.fetch(own)
    assert isinstance(row, FetchedPartition) and row.stored is not None
    secured.command("acl", "delete", "leaver", "read", "--topic", TP.topic, "--yes")
    with pytest.raises(PermissionError):
        SegmentFile(row.stored, may_pass_cache=False)
    # As the documentation says, the file that is open already can still be read.
    assert len(os.pread(held.fd, 1000, 0)) == 1000
    held.close()
    for connection in (first, second):
        connection.close()


def test_user_gets_no_segment_file_once_the_connection_of_the_fetch_is_closed(
    secured: Secured,
) -> None:
    row, connection = secured.fetch(secured.admin)
    assert isinstance(row, FetchedPartition) and row.stored is not None
    connection.close()
    refused = secured.counts()[2]

    def is_void() -> bool:
        try:
            SegmentFile(row.stored, may_pass_cache=False).close()
        except PermissionError:
            return True
        return False

    # The broker closes its side a moment later. A ticket is valid once, so it is void either way.
    until(is_void)
    assert secured.counts()[2] == refused + 1


def test_client_that_cannot_receive_file_descriptors_gets_records_in_the_response(
    secured: Secured,
) -> None:
    row, connection = secured.fetch(secured.admin, takes_tickets=False)
    connection.close()
    assert isinstance(row, FetchedPartition)
    assert row.stored is None and len(row.records) > 1 << 19


def test_client_with_a_byte_quota_gets_records_in_the_fetch_response(
    secured: Secured,
) -> None:
    own = secured.user("slow")
    secured.command("acl", "add", "slow", "read", "--topic", TP.topic)
    secured.command("quota", "set", "consumer_byte_rate", "100000000", "--user", "slow")

    def receives() -> bool:
        row, connection = secured.fetch(own)
        connection.close()
        return isinstance(row, FetchedPartition) and row.stored is None and len(row.records) > 0

    until(receives)


@pytest.mark.parametrize("reads_once", [False, True])
def test_reader_that_cannot_reach_the_brokers_unix_socket_falls_back_to_fetches(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, reads_once: bool
) -> None:
    """A reader in a container with another network namespace cannot reach the socket."""
    attempts: list[bytes] = []

    def unreachable(socket_id: bytes) -> bytes:
        attempts.append(socket_id)
        return b"\0logbus-nowhere"

    monkeypatch.setattr(segment_file.tickets, "socket_name", unreachable)
    before = secured.sent()
    options: dict[str, Any] = {"fetch_bytes": 300_000, "reads_once": reads_once}
    assert secured.read(**options) == list(range(ROWS))
    assert len(attempts) == 1
    with (
        secured.connect() as bus,
        bus.consumer(TP.topic, start="earliest", partition_fetch_bytes=300_000) as consumer,
    ):
        found = 0
        while found < ROWS:
            found += consumer.poll_arrow(20.0).num_rows
    assert len(attempts) == 2
    assert secured.sent() == before


def test_reader_finishes_a_file_that_is_deleted_while_it_is_open(secured: Secured) -> None:
    before = secured.sent()
    pool = Pool(security=security_of_file(secured.admin))
    parts = read_range(
        TP, secured.topic_id, secured.view.leader_epoch(TP), 0, ROWS,
        bootstrap=secured.servers, pool=pool,
    )  # fmt: skip
    found = [int(offset) for offset in offsets_of(next(iter(parts)))]
    aside = secured.path.rename(secured.path.with_suffix(".gone"))
    try:
        found += [int(offset) for rows in parts for offset in offsets_of(rows)]
        assert found == list(range(ROWS))
        # The broker hands out the file that it has open, whatever its name is.
        assert secured.read() == list(range(ROWS))
    finally:
        aside.rename(secured.path)
        pool.close()
    assert secured.sent() == before + 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_process_of_another_user_reads_a_file_that_the_broker_opened_for_it(
    secured: Secured,
) -> None:
    """The reading process's user may neither enter the broker's folder nor open its files."""
    own = secured.user("other")
    secured.command("acl", "add", "other", "read", "--topic", TP.topic)
    rows = own.read_text("utf-8").splitlines()
    (ca,) = [row.split("=", 1)[1] for row in rows if row.startswith("ssl.ca.location=")]
    public = secured.folder / "ca.pem"
    public.write_text(Path(ca).read_text("ascii"))
    public.chmod(0o644)
    own.write_text(own.read_text("utf-8").replace(ca, str(public)))
    os.chown(own, NOBODY, NOBODY)
    before = secured.sent()
    done = subprocess.run(
        [sys.executable, "-P", "-c", READER, secured.servers, str(own), TP.topic,
         str(secured.path), str(ROWS)],
        capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": "/nonexistent"},
    )  # fmt: skip
    assert done.stdout.strip() == str(ROWS), done.stderr
    assert secured.sent() == before + 1


def test_stopped_broker_leaves_no_unix_socket_for_file_requests(secured: Secured) -> None:
    """The next broker process has a socket with another address, so a client cannot exchange a
    ticket (a permission to get an open file) of the former process."""
    row, connection = secured.fetch(secured.admin)
    assert isinstance(row, FetchedPartition) and row.stored is not None
    broker = secured.cluster.brokers[0]
    broker.stop()
    with pytest.raises(ConnectionRefusedError):
        SegmentFile(row.stored, may_pass_cache=False)
    connection.close()
    broker.start()
    assert secured.read() == list(range(ROWS))
    assert secured.sent() == 1
