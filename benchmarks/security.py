"""Measure the cost of TLS, logins and the authorizer, beside Apache Kafka.

    python benchmarks/security.py [--seconds 2] [--rounds 5] [--only NAME,…]

``--only`` chooses parts: transfer, logins, authorizer, crowds, start and in_place.

The script prints one JSON object. Every broker has an open listener and a listener with SASL_SSL
(SCRAM-SHA-256), and all cases of a round run one by one. ``load`` is the machine's load average
before and after a part.

``transfer``: librdkafka produces values of 1 KB with acks=all, and consumes them, in MB/s. ``tls``
is the rate with TLS divided by the rate with plaintext. ``beside_kafka`` is the ratio of logbus to
Kafka with TLS, divided by the same ratio without TLS. All ratios are medians of the rounds. logbus
flushes before it acknowledges, Kafka does not. ``broker_cpu_ms_per_mb`` is the broker's processor
time without and with TLS, which other load of the machine disturbs less.

``logins``: LOGIN_THREADS threads connect, log in with keys that they derived before, and close.
``broker_cpu_ms`` is the broker's processor time for a login. Without Maven, the figures of Kafka
are missing.

``authorizer``: ``cached_us`` is the time that an authorizer adds to a request with one topic: the
difference of the minima of short runs, which alternate. ``share`` divides this time by the broker's
processor time of a small produce request (``benchmarks/broker.py``). ``uncached_us`` is the time of
a first decision with ACLS access control lists.

``crowds``: the p99 of a logged-in client's small produce requests (acks=all), alternately without
and with other clients. ``slow``: CROWD connections send a byte of their TLS handshake a second, and
connect again when the broker closes them. ``greedy``: a producer sends as fast as its quota of
GREEDY_BYTE_RATE bytes a second allows; ``greedy_without_quota`` is the same producer without the
quota. ``storm``: CROWD clients log in together, repeatedly.
``storm_at_another``: the same storm logs in to a second broker. The p99 meanwhile shows how much
the crowd's own work slows this machine. ``ratio`` is the median of p99 divided by the p99 measured
just before without the crowd. ``own_share`` is the p99 during ``storm`` divided by the p99 during
``storm_at_another``: the part that the broker causes. ``broker_cores`` is the broker's processor
time in a second. The crowd runs in a process of a low priority.

``start``: seconds of ``logbus up --detach`` with a new folder, with and without ``--secure``,
alternately. ``further_s`` is the median difference.

``in_place``: a consumer on the machine of a secured broker reads a topic of IN_PLACE_MB MB, once by
fetches over TLS and once from the broker's segment file, which it receives as an open descriptor.
``columns`` are batches of logbus's producer, read as tables; ``rows`` are batches of librdkafka,
read as records. All bytes are in the page cache. ``ratio`` is the median of the rounds' rates in
place divided by those over TLS; ``cpu_ratio`` compares the processor time of broker and consumer.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import multiprocessing
import os
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import pyarrow as pa
from broker import SMALL, one_broker
from confluent_kafka import admin as ck_admin
from peers.fetch import Cannot
from peers.figures import in_turns, main, median, percentile, ratio, timed
from peers.meter import CpuUse
from peers.servers import KafkaServers, LogbusServers, dotted, free_ports, send_all

from broker_lite.bus import Bus, connect
from broker_lite.client.administration import quotas, users
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.login import TaskSecret
from broker_lite.client.transport.pool import PooledConnection
from broker_lite.client.transport.steps import ProduceExchange
from broker_lite.config import BrokerConfig, parse
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import LogbusError
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.issuing import CertificateFolder
from broker_lite.model import Endpoint, ScramMechanism
from broker_lite.record.records import encode_entries
from broker_lite.security.acls import (
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)
from broker_lite.security.authorizer import AclIndex
from broker_lite.security.quotas import Entity
from broker_lite.server.network.access import Authorizer
from broker_lite.server.network.context import RequestContext, Session
from broker_lite.wire.produce import PartitionRecords, TopicRecords

VALUE = os.urandom(1000)
PARTITIONS = 4
LOGIN_THREADS = 4
LOGIN_TIMEOUT_S = 30.0
ACLS = 10_000
SHORT_RUN, SHORT_RUNS = 300, 400
USER, PASSWORD = "bench", "of the bench"
PARTS = "transfer,logins,authorizer,crowds,start,in_place"
CROWD = 1000
CROWD_NICE = 10
PROBE_GAP_S = 0.002
STORM_THREADS = 100
GREEDY, GREEDY_BYTE_RATE = "greedy", 1_000_000.0
IN_PLACE_MB = 200
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Side(NamedTuple):
    """A system under test: its servers, the address of its TLS listener, and the CA to trust."""

    servers: LogbusServers | KafkaServers
    port: int
    ca: str

    def options(self, *, tls: bool) -> dict[str, Any]:
        """Return librdkafka's options for a connection, with or without TLS."""
        if not tls:
            return {"bootstrap.servers": self.servers.bootstrap_servers, "log_level": 0}
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "log_level": 0,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": self.ca,
        }

    def cpu_use(self) -> CpuUse:
        """Return a context that measures the broker's processor time."""
        return CpuUse({"broker": self.servers.processes()["broker"]})


@contextlib.contextmanager
def logbus_side() -> Iterator[tuple[Side, str]]:
    """Start a broker of logbus with an open listener and one with logins, and create a user.

    Yield the system under test (``Side``), and the path of its CA certificate.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = CertificateFolder(folder)
        pem = made.certify("clients", "broker", ["127.0.0.1"], datetime.datetime.now(datetime.UTC))
        opened, ours = free_ports(2)
        config = {
            "listeners": f"PLAINTEXT://127.0.0.1:{opened},SASL_SSL://127.0.0.1:{ours}",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.location": str(pem),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        }
        servers = stack.enter_context(LogbusServers(1, config))
        servers.bus.admin.run(users.set_password, USER, PASSWORD, [ScramMechanism.SHA_256])
        yield Side(servers, ours, str(folder / "clients-ca.pem")), str(pem)


@contextlib.contextmanager
def sides() -> Iterator[dict[str, Side]]:
    """Start a broker of each system and create a user; yield the systems under test.

    Kafka is left out if it cannot be downloaded.
    """
    with contextlib.ExitStack() as stack:
        ours, pem = stack.enter_context(logbus_side())
        found = {"logbus": ours}
        config = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": JAAS,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": pem,
        }
        try:
            kafka = stack.enter_context(KafkaServers(config=config, further="SASL_SSL"))
            found["kafka"] = Side(kafka, kafka.further_port, ours.ca)
            _add_user_to_kafka(found["kafka"])
        except Cannot as error:
            print(f"without Kafka: {error}", file=sys.stderr)
        yield found


def _add_user_to_kafka(side: Side) -> None:
    info = ck_admin.ScramCredentialInfo(ck_admin.ScramMechanism.SCRAM_SHA_256, 8192)
    change = ck_admin.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    client = ck_admin.AdminClient(side.options(tls=False))
    for done in client.alter_user_scram_credentials([change]).values():
        done.result(60)


def until_logged_in(side: Side) -> None:
    """Wait until the broker accepts the user's login."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(ck.KafkaException):
            ck_admin.AdminClient(side.options(tls=True)).list_topics(timeout=5)
            return
        assert time.monotonic() < deadline, f"no login at {side.servers.peer}"


class Speed(NamedTuple):
    """The rate of a transfer, and the broker's processor time for each MB."""

    mb_per_s: float
    cpu_ms_per_mb: float


def transfer(side: Side, seconds: float, *, tls: bool) -> tuple[Speed, Speed]:
    """Produce for ``seconds``, then consume all records; return both speeds."""
    options = side.options(tls=tls)
    with side.servers.topic(PARTITIONS) as topic:
        producer = ck.Producer({**options, "acks": "all", "linger.ms": 5})
        producer.list_topics(topic, timeout=30)
        count, until = 0, time.perf_counter() + seconds
        with side.cpu_use() as producing:
            while time.perf_counter() < until:
                for _ in range(200):
                    try:
                        producer.produce(topic, VALUE, partition=count % PARTITIONS)
                        count += 1
                    except BufferError:
                        producer.poll(0.01)
                producer.poll(0)
            assert producer.flush(120) == 0
        size_mb = count * len(VALUE) / 1e6
        consumer = ck.Consumer({**options, "group.id": topic, "enable.auto.commit": False})
        seen, first = 0, 0.0
        with side.cpu_use() as consuming, contextlib.closing(consumer):
            consumer.assign([ck.TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
            while seen < count:
                rows = [row for row in consumer.consume(10_000, 1.0) if row.error() is None]
                if rows and not first:  # Start the clock after the login and the first fetch.
                    first, skipped = time.perf_counter(), len(rows)
                seen += len(rows)
            rate = (seen - skipped) * len(VALUE) / (time.perf_counter() - first) / 1e6
    return (
        Speed(size_mb / producing.wall_s, producing.seconds["broker"] * 1000 / size_mb),
        Speed(rate, consuming.seconds["broker"] * 1000 / size_mb),
    )


def transfers(found: dict[str, Side], rounds: int, seconds: float) -> dict[str, Any]:
    cases = list(itertools.product(found, (False, True)))
    runs = in_turns(cases, lambda case: transfer(found[case[0]], seconds, tls=case[1]), rounds)
    result: dict[str, Any] = {}
    for index, kind in enumerate(("produce", "consume")):
        speeds = {case: [each[index] for each in runs[case]] for case in cases}
        rates = {case: [each.mb_per_s for each in speeds[case]] for case in cases}
        result[kind] = rows = {
            name: {
                "broker_cpu_ms_per_mb": [
                    median((each.cpu_ms_per_mb for each in speeds[name, tls]), 2)
                    for tls in (False, True)
                ],
                "plaintext_mb_per_s": median(rates[name, False]),
                "tls_mb_per_s": median(rates[name, True]),
                "tls": ratio(rates[name, True], rates[name, False]),
            }
            for name in found
        }
        if "kafka" in found:
            ours, theirs = (
                [secured / plain for secured, plain in zip(rates[name, True], rates[name, False])]
                for name in ("logbus", "kafka")
            )
            rows["beside_kafka"] = ratio(ours, theirs)
    return result


def key_security(port: int, ca: str) -> ClientSecurity:
    """Log in with the password; return client settings with the derived keys, so that later
    logins derive none."""

    def of(secret: Secret | TaskSecret) -> ClientSecurity:
        return ClientSecurity(
            "SASL_SSL",
            ca_location=ca,
            mechanism="SCRAM-SHA-256",
            username=USER,
            secret=secret,
        )

    address = Endpoint("127.0.0.1", port)
    first = PooledConnection(address, "bench", LOGIN_TIMEOUT_S, of(Secret(PASSWORD)))
    first.close()
    assert first.task_secret is not None
    return of(first.task_secret)


def log_in(side: Side, seconds: float) -> tuple[float, float]:
    """Log in repeatedly for ``seconds``.

    Return the logins per second, and the broker's processor time for one login in ms.
    """
    address, keys = Endpoint("127.0.0.1", side.port), key_security(side.port, side.ca)
    until = time.perf_counter() + seconds

    def run(_: int) -> int:
        count = 0
        while time.perf_counter() < until:
            PooledConnection(address, "bench", LOGIN_TIMEOUT_S, keys).close()
            count += 1
        return count

    with side.cpu_use() as use, ThreadPoolExecutor(LOGIN_THREADS) as pool:
        count = sum(pool.map(run, range(LOGIN_THREADS)))
    return count / use.wall_s, use.seconds["broker"] * 1000 / max(count, 1)


def logins(found: dict[str, Side], rounds: int, seconds: float) -> dict[str, Any]:
    runs = in_turns(found, lambda name: log_in(found[name], seconds), rounds)
    per_s = {name: [each[0] for each in rows] for name, rows in runs.items()}
    result: dict[str, Any] = {
        name: {
            "per_s": median(per_s[name]),
            "broker_cpu_ms": median((each[1] for each in rows), 2),
        }
        for name, rows in runs.items()
    }
    if "kafka" in found:
        result["ratio"] = ratio(per_s["logbus"], per_s["kafka"])
    return result


def slow_connections(port: int, ready: Event, ended: Event) -> None:
    """Keep CROWD connections open that send a byte of their TLS handshake a second."""
    os.nice(CROWD_NICE)
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="b")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()

    def opened() -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        return sock

    sockets, sent = [opened() for _ in range(CROWD)], [0] * CROWD
    ready.set()
    number = 0
    while not ended.wait(10 / CROWD):
        for _ in range(10):
            number = (number + 1) % CROWD
            try:
                sockets[number].send(hello[sent[number] : sent[number] + 1])
                sent[number] += 1
            except OSError:
                sockets[number].close()
                sockets[number], sent[number] = opened(), 0


def greedy(options: dict[str, Any], ready: Event, ended: Event) -> None:
    """Send records as fast as the broker accepts them."""
    os.nice(CROWD_NICE)
    producer = ck.Producer({**options, "acks": "all", "linger.ms": 5})
    producer.list_topics(GREEDY, timeout=30)
    while not ended.is_set():
        with contextlib.suppress(BufferError):
            for _ in range(200):
                producer.produce(GREEDY, VALUE)
        producer.poll(0.01)
        ready.set()
    producer.purge()
    producer.flush(10)


def storms(port: int, ca: str, ready: Event, ended: Event) -> None:
    """Log in CROWD clients together, repeatedly.

    A client whose connection the broker closes tries again.
    """
    os.nice(CROWD_NICE)
    address, keys = Endpoint("127.0.0.1", port), key_security(port, ca)

    def log_in_once() -> None:
        while not ended.is_set():
            with contextlib.suppress(LogbusError):
                PooledConnection(address, "storm", LOGIN_TIMEOUT_S, keys).close()
                return

    while not ended.is_set():
        threads = [threading.Thread(target=log_in_once) for _ in range(CROWD)]
        for number, thread in enumerate(threads):
            thread.start()
            if number == STORM_THREADS:
                ready.set()
        for thread in threads:
            thread.join()


class Probe:
    """A logged-in client that sends small produce requests, one after the other."""

    def __init__(self, side: Side) -> None:
        batch = PartitionRecords(0, encode_entries([(None, bytes(100))], 1))
        topic_id = side.servers.bus.create_topic("probe", 1, 1)
        rows = [TopicRecords("", topic_id, [batch])]
        self._exchange = ProduceExchange(rows, acks=-1, timeout_ms=30_000)
        address = Endpoint("127.0.0.1", side.port)
        keys = key_security(side.port, side.ca)
        self._connection = PooledConnection(address, "probe", LOGIN_TIMEOUT_S, keys)

    def p99_ms(self, seconds: float) -> float:
        def once() -> None:
            deadline_ms = monotonic_ms() + LOGIN_TIMEOUT_S * 1000
            self._connection.send(self._exchange, deadline_ms)
            self._connection.receive(deadline_ms)

        took, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until:
            took.append(timed(once) * 1000)
            time.sleep(PROBE_GAP_S)
        return percentile(took, 99)

    def close(self) -> None:
        self._connection.close()


class Turn(NamedTuple):
    """One measurement, without or with other clients: the p99 latency of a client's small produce
    requests (``Probe``), and the number of cores that the broker used meanwhile."""

    p99_ms: float
    broker_cores: float


def crowds(rounds: int, seconds: float) -> dict[str, Any]:
    started = multiprocessing.get_context("spawn")
    with logbus_side() as (side, _), logbus_side() as (other, _):
        bus = side.servers.bus
        bus.create_topic(GREEDY, PARTITIONS, 1)
        quota = {"producer_byte_rate": GREEDY_BYTE_RATE}
        bus.admin.run(quotas.alter_quotas, Entity((("client-id", GREEDY),)), quota)
        options = side.options(tls=True)
        crowds_of = {
            "slow": (slow_connections, (side.port,)),
            "greedy": (greedy, ({**options, "client.id": GREEDY},)),
            "greedy_without_quota": (greedy, (options,)),
            "storm_at_another": (storms, (other.port, other.ca)),
            "storm": (storms, (side.port, side.ca)),
        }
        kept: dict[str, list[tuple[Turn, Turn]]] = {name: [] for name in crowds_of}
        until_logged_in(side)
        until_logged_in(other)
        probe = Probe(side)

        def turn() -> Turn:
            with side.cpu_use() as use:
                p99_ms = probe.p99_ms(seconds)
            return Turn(p99_ms, use.percent["broker"] / 100)

        turn()
        for _ in range(rounds):
            for name, (work, arguments) in crowds_of.items():
                alone = turn()
                ready, ended = started.Event(), started.Event()
                crowd = started.Process(target=work, args=(*arguments, ready, ended))
                crowd.start()
                assert ready.wait(60), "the crowd did not start"
                kept[name].append((alone, turn()))
                ended.set()
                crowd.join(60)
        probe.close()
    found: dict[str, Any] = {
        name: {
            key: [
                median((getattr(each, key) for each in column), 2)
                for column in zip(*rows, strict=True)
            ]
            for key in Turn._fields
        }
        | {"ratio": ratio([b.p99_ms for _, b in rows], [a.p99_ms for a, _ in rows])}
        for name, rows in kept.items()
    }
    found["storm"]["own_share"] = ratio(
        *([beside.p99_ms for _, beside in kept[name]] for name in ("storm", "storm_at_another"))
    )
    return found


def start_s(name: str) -> float:
    """Start a cluster in a new folder with the command ``name``; return the seconds until it is
    ready."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_DATA_HOME": f"{folder}/data"}
        command, where = [sys.executable, "-P", "-m", "broker_lite"], ["--dir", f"{folder}/cluster"]
        began = time.perf_counter()
        run = [*command, *name.split(), "-d", "--port", "0", *where]
        subprocess.run(run, check=True, capture_output=True, env=environment)
        took = time.perf_counter() - began
        subprocess.run([*command, "down", *where], check=True, capture_output=True, env=environment)
    return took


def start(rounds: int) -> dict[str, float]:
    opened, secured = in_turns(("up", "up --secure"), start_s, rounds).values()
    further = (after - before for before, after in zip(opened, secured, strict=True))
    return {
        "up_s": median(opened, 2),
        "up_secure_s": median(secured, 2),
        "further_s": median(further, 2),
    }


def fill_topics(bus: Bus, config: str) -> None:
    """Write IN_PLACE_MB MB to each of the topics ``columns`` and ``rows``."""
    count = IN_PLACE_MB * 1_000_000 // len(VALUE)
    for topic in ("columns", "rows"):
        bus.create_topic(topic, 1)
    table = pa.table({"value": pa.array([VALUE] * 1000, pa.binary())})
    with bus.producer() as columns:
        for _ in range(count // 1000):
            columns.send_arrow("columns", table, partition=0)
    settings = dict(row.split("=", 1) for row in Path(config).read_text("utf-8").splitlines())
    sends = itertools.repeat({"topic": "rows", "value": VALUE, "partition": 0}, count)
    send_all(bus.bootstrap_servers, sends, **settings, acks="all", linger_ms=5)


def read_topic(bus: Bus, topic: str, *, in_place: bool) -> float:
    """Read a whole topic; return the MB of values a second."""
    left, is_first = IN_PLACE_MB * 1_000_000 // len(VALUE), True
    with bus.consumer(topic, start="earliest", local_reads=in_place) as consumer:
        while left > 0:
            if topic == "columns":
                count = consumer.poll_arrow(10.0).num_rows
            else:
                count = len(consumer.poll(10.0))
            if is_first:  # Do not measure the login and the first fetch.
                began, skipped, is_first = time.perf_counter(), count, False
            left -= count
        took = time.perf_counter() - began
    return IN_PLACE_MB * (1 - skipped * len(VALUE) / (IN_PLACE_MB * 1_000_000)) / took


def in_place(rounds: int) -> dict[str, Any]:
    """Compare reads of a secured broker's files with fetches over TLS, in alternate runs."""
    with (
        LocalCluster(1, secure=True) as cluster,
        connect(cluster.bootstrap_servers, client_config=cluster.client_config) as bus,
    ):
        fill_topics(bus, str(cluster.client_config))
        pids = [os.getpid(), cluster.brokers[0].pid]

        def run(case: tuple[str, bool]) -> tuple[float, float]:
            with CpuUse({"all": pids}) as use:
                rate = read_topic(bus, case[0], in_place=case[1])
            return rate, use.seconds["all"]

        runs = in_turns(itertools.product(("columns", "rows"), (False, True)), run, rounds)
    found = {}
    for topic in ("columns", "rows"):
        (tls, tls_cost), (local, local_cost) = (zip(*runs[topic, each]) for each in (False, True))
        found[topic] = {
            "tls_mb_per_s": round(median(tls)),
            "in_place_mb_per_s": round(median(local)),
            "ratio": ratio(local, tls),
            "cpu_ratio": ratio(local_cost, tls_cost),
        }
    return found


class _Topic(NamedTuple):
    name: str
    topic_id: str = ""


def authorizer(small_us: float) -> dict[str, float]:
    header = memoryview(struct.pack(">hhih5s", 0, 9, 1, 5, b"bench") + b"\0")
    grant = Entry(f"User:{USER}", "*", Operation.WRITE, Permission.ALLOW)
    rows = [_Topic("events")]

    def made(**settings: str) -> Callable[[], float]:
        config = parse(BrokerConfig, dotted(settings))
        decider = Authorizer(config)
        pattern = Pattern(ResourceKind.TOPIC, PatternType.LITERAL, "events")
        decider.index = decider.index.with_entries({pattern: frozenset({grant})})
        session = Session(1, "127.0.0.1:1", principal=f"User:{USER}")

        def run() -> float:
            began = time.perf_counter()
            for _ in range(SHORT_RUN):
                access = RequestContext.read(header, session, 0, decider).access
                if access.is_checked and access.row.cluster:
                    raise AssertionError
                access.denied_topics(rows, {})
                _ = access.has_checked
            return (time.perf_counter() - began) / SHORT_RUN * 1e6

        return run

    off, on = made(), made(authorizer="enforce", super_users="User:admin")
    runs = [(off(), on()) for _ in range(SHORT_RUNS)]
    cached_us = min(each[1] for each in runs) - min(each[0] for each in runs)
    kinds = (PatternType.LITERAL, PatternType.PREFIXED)
    index = AclIndex({
        Pattern(ResourceKind.TOPIC, kinds[number % 2], f"team-{number}-"): frozenset({grant})
        for number in range(ACLS)
    })  # fmt: skip
    asked = [(f"User:{USER}", "h", Operation.WRITE, ResourceKind.TOPIC, f"team-{number}-x")
             for number in range(ACLS)]  # fmt: skip
    took = [timed(index.may, *each) * 1e6 for each in asked]
    return {
        "cached_us": round(cached_us, 3),
        "small_produce_cpu_us": small_us,
        "share": round(cached_us / small_us, 4),
        "uncached_us": median(took, 2),
    }


def small_produce_us(seconds: float) -> float:
    """Return the broker's processor time, in us, for a small produce request."""
    with one_broker(seconds) as bench:
        bench.small_produces()
    return bench.results[SMALL]["cpu_us"]


def measure(seconds: float = 2.0, rounds: int = 5, only: str = PARTS) -> dict[str, Any]:
    wanted = set(only.split(","))
    result: dict[str, Any] = {}

    def run(name: str, work: Callable[[], dict[str, Any]]) -> None:
        if name in wanted:
            load = os.getloadavg()[0]
            result[name] = {**work(), "load": [round(load, 1), round(os.getloadavg()[0], 1)]}

    if wanted & {"transfer", "logins"}:
        with sides() as found:
            for side in found.values():
                until_logged_in(side)
            run("transfer", lambda: transfers(found, rounds, seconds))
            run("logins", lambda: logins(found, rounds, seconds))
    run("authorizer", lambda: authorizer(small_produce_us(seconds)))
    run("crowds", lambda: crowds(rounds, seconds))
    run("start", lambda: start(rounds))
    run("in_place", lambda: in_place(rounds))
    return result


if __name__ == "__main__":
    main(measure)
