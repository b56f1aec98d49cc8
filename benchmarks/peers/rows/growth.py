"""Measure how logbus's cost grows. Each benchmark (a *row* of the table of results) increases one
quantity, such as the number of connections.

The table has a column for each value of that quantity, the smallest first.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import kafka_groups

from broker_lite.model import EARLIEST_TIMESTAMP, TopicPartition
from peers import fetch, members
from peers.bench import Bench
from peers.growth import IS_FULL, Alone, Waiters, alone, column, percentile, resident_mb
from peers.row import Measures, Row, Side, Variant

VALUE_BYTES = 200
IDLE_SECONDS = 15.0
"""Duration of an idle measurement in seconds.

It covers many replication fetches, ZooKeeper pings and periodic tasks.
"""
TOPIC_PARTITIONS_MAX = 1_000
"""Maximum number of partitions of a topic (``max.create.partitions``)."""
RETENTION_SECONDS_MAX = 60.0
SECONDS_MAX = 1800.0
"""Maximum duration, in seconds, of the measurement of one size, such as one number of partitions. A
longer measurement fails."""
ROOM = 1.3
"""Necessary free disk space, as a multiple of the log's size."""
MB = 1_000_000

Run = Callable[[Bench, int], Measures]
Unit = Callable[[int], str]


def partitions(bench: Bench, count: int) -> Measures:
    """Measure ``count`` partitions: create topics, write 20 MB in all, restart the broker.

    A topic has at most 1,000 partitions.
    """
    shares = {
        f"t{first}": min(TOPIC_PARTITIONS_MAX, count - first)
        for first in range(0, count, TOPIC_PARTITIONS_MAX)
    }
    places = [TopicPartition(name, n) for name, share in shares.items() for n in range(share)]
    with alone(bench) as logbus:
        create_s = sum(logbus.new_topic(name, share) for name, share in shares.items())
        logbus.settle()
        idle = logbus.idle_percent(IDLE_SECONDS)
        values = bench.lines.sized(100_000, VALUE_BYTES)
        share = len(values) // count
        pieces = [column(values[n * share : (n + 1) * share]) for n in range(count)]
        with logbus.bus.producer() as producer:
            for place in places:
                producer.send(place.topic, b"warm", partition=place.partition)
            producer.flush()
            before = time.perf_counter()
            for place, piece in zip(places, pieces, strict=True):
                producer.send_columns(place.topic, piece, place.partition)
            producer.flush()
            produce_s = time.perf_counter() - before
        memory = resident_mb(logbus.processes()["broker"])
        last = places[-1]
        return {
            "create_topic_s": create_s,
            **idle,
            "produce_20_mb_s": produce_s,
            "broker_mb": memory,
            "restart_s": logbus.restart(by_kill=False, last=last),
            "restart_after_kill_s": logbus.restart(by_kill=True, last=last),
        }


def log_size(bench: Bench, megabytes: int) -> Measures:
    """Measure a log of ``megabytes``: fill one partition, read it, restart, delete old segments.

    Segments have 64 MB, and the newest segment is not deleted.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free / MB
    if free < ROOM * megabytes:
        raise fetch.Cannot(
            f"{folder} has {free:,.0f} MB free, the row needs {ROOM * megabytes:,.0f}"
        )
    with alone(bench, **{"log.retention.check.interval.ms": "1000"}) as logbus:
        logbus.new_topic("t", segment_bytes=str(64 * MB), file_delete_delay_ms="1000")
        rows = column(bench.lines.sized(50_000, VALUE_BYTES))
        count = max(1, megabytes * MB // (rows.row_count * VALUE_BYTES))
        tp = TopicPartition("t", 0)
        began_ms, before = int(time.time() * 1000), time.perf_counter()
        with logbus.bus.producer() as producer:
            for _ in range(count):
                producer.send_columns("t", rows, 0)
            producer.flush()
        written = time.perf_counter() - before
        total = count * rows.row_count
        found = {
            "write_mb_per_s": count * rows.row_count * VALUE_BYTES / MB / written,
            **_reads(logbus, tp, total, began_ms),
            "restart_s": logbus.restart(by_kill=False, last=tp),
            "restart_after_kill_s": logbus.restart(by_kill=True, last=tp),
        }
        return {**found, **_retention(logbus, tp)}


def _reads(logbus: Alone, tp: TopicPartition, total: int, began_ms: int) -> Measures:
    """Measure three reads: a record at an offset, a timestamp lookup, and the last 200 MB (or the
    whole log, if it has less).

    The timestamp is later than ``began_ms``."""
    places, ended_ms = random.Random(1), int(time.time() * 1000)
    seeks, lookups = [], []
    with logbus.bus.consumer(tp.topic, start="earliest") as consumer:
        consumer.poll(5.0)
        for _ in range(30):
            before = time.perf_counter()
            consumer.seek(tp, places.randrange(total))
            consumer.poll(5.0)
            seeks.append((time.perf_counter() - before) * 1000)
        start = max(0, total - 1_000_000)
        consumer.seek(tp, start)
        got = 0
        before = time.perf_counter()
        while got < total - start:
            got += consumer.poll_arrow(5.0).num_rows
        read = time.perf_counter() - before
    for _ in range(30):
        time_ms = places.randrange(began_ms, ended_ms)
        before = time.perf_counter()
        logbus.bus.admin.list_offsets({tp: time_ms})
        lookups.append((time.perf_counter() - before) * 1000)
    return {
        "read_mb_per_s": got * VALUE_BYTES / MB / read,
        "seek_p50_ms": percentile(seeks, 50),
        "offset_of_time_p50_ms": percentile(lookups, 50),
    }


def _retention(logbus: Alone, tp: TopicPartition) -> Measures:
    """Measure how retention deletes all segments but the newest while a producer runs."""
    times: list[float] = []
    done = threading.Event()

    def write() -> None:
        with logbus.bus.producer(linger_ms=0) as producer:
            while not done.is_set():
                before = time.perf_counter()
                producer.send(tp.topic, b"meanwhile", partition=0).result(60)
                times.append((time.perf_counter() - before) * 1000)
                time.sleep(0.002)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        before = time.perf_counter()
        logbus.bus.admin.alter_configs(tp.topic, {"retention.bytes": "1000"})
        while logbus.bus.admin.list_offsets({tp: EARLIEST_TIMESTAMP})[tp].offset == 0:
            if time.perf_counter() - before > RETENTION_SECONDS_MAX:
                raise RuntimeError("retention deleted no segment")
            time.sleep(0.02)
        gone = time.perf_counter() - before
        # Wait until the broker has deleted the segment's files, some seconds after it dropped the
        # segment. The deletion may delay the writer.
        time.sleep(2.5)
    finally:
        done.set()
        writer.join()
    return {"retention_s": gone, "write_during_retention_max_ms": max(times)}


def brokers(bench: Bench, count: int) -> Measures:
    """Measure a cluster of ``count`` brokers with two partitions for each broker: first with one
    replica of each partition, then with a replica of each partition on every broker."""
    rows = column(bench.lines.sized(5_000, VALUE_BYTES))
    with alone(bench, count) as logbus:
        found: Measures = {}
        for copies in dict.fromkeys((1, count)):
            name = f"t{copies}"
            logbus.new_topic(name, 2 * count, copies)
            with logbus.bus.producer() as producer:
                for number in range(2 * count):
                    producer.send(name, b"warm", partition=number)
                producer.flush()
                before = time.perf_counter()
                for number in range(100):
                    producer.send_columns(name, rows, number % (2 * count))
                producer.flush()
                took = time.perf_counter() - before
            rate = 100 * rows.row_count * VALUE_BYTES / MB / took
            if copies == 1:
                found["rf_1_mb_per_s"] = rate
            if copies == count:
                found["rf_all_mb_per_s"] = rate
                found["rf_all_ack_p50_ms"] = _ack_p50(logbus, name)
        logbus.settle()
        return {**found, **logbus.idle_percent(IDLE_SECONDS)}


def _ack_p50(logbus: Alone, topic: str, count: int = 200) -> float:
    times = []
    with logbus.bus.producer(linger_ms=0) as producer:
        for _ in range(count):
            before = time.perf_counter()
            producer.send(topic, b"x" * 100, partition=0).result(60)
            times.append((time.perf_counter() - before) * 1000)
    return percentile(times, 50)


def connections(bench: Bench, count: int) -> Measures:
    """Measure ``count`` consumers, each with its own connection, at the end of one partition."""
    with alone(bench) as logbus:
        logbus.new_topic("t")
        empty = resident_mb(logbus.processes()["broker"])
        topic_id = logbus.bus.admin.cluster(["t"]).topics["t"].topic_id
        waiters = Waiters(logbus.cluster.brokers[0].port, topic_id, count)
        try:
            waiters.ask(0)
            waiters.idle(1.0)
            percent: Measures = {}
            watch = threading.Thread(
                target=lambda: percent.update(logbus.idle_percent(IDLE_SECONDS))
            )
            watch.start()
            waiters.idle(IDLE_SECONDS + 0.2)
            watch.join()
            memory = resident_mb(logbus.processes()["broker"]) - empty
            times = []
            with logbus.bus.producer(linger_ms=0) as producer:
                for offset in range(20):
                    before = time.perf_counter()
                    producer.send("t", b"to all of them", partition=0)
                    waiters.until_all_have_it()
                    times.append((time.perf_counter() - before) * 1000)
                    waiters.ask(offset + 1)
                    waiters.idle(0.05)
        finally:
            waiters.close()
        return {
            **{name: value for name, value in percent.items() if "broker" in name},
            "kb_a_connection": max(0.0, memory) * 1000 / count,
            "all_have_it_p50_ms": percentile(times, 50),
        }


def group_members(bench: Bench, count: int) -> Measures:
    """Measure a Kafka group of ``count`` members that do not read: the time until the group is
    stable, the latency of heartbeats, and the processor time of the servers."""
    with alone(bench) as logbus:
        logbus.new_topic(kafka_groups.TOPIC, kafka_groups.PARTITIONS_A_MEMBER)
        return members.measure(logbus, count)


@contextlib.contextmanager
def open_growth(
    bench: Bench, _: Variant, *, run: Run, sizes: Sequence[int], unit: Unit
) -> Iterator[Mapping[str, Side]]:
    def measured(size: int) -> Measures:
        return {key: round(value, 4) for key, value in run(bench, size).items()}

    # End the servers of earlier benchmarks. If they ended during the measurement, the meter would
    # count their processor time.
    bench.stop_all()
    chosen = sizes if not bench.quick else (sizes[0], sizes[len(sizes) // 2])
    yield {unit(size): Side(partial(measured, size), within=bench.within) for size in chosen}


def _row(
    name: str,
    work: str,
    run: Run,
    sizes: Sequence[int],
    *,
    full: Sequence[int] = (),
    unit: Unit = "{:,}".format,
    note: str = "",
) -> Row:
    chosen = tuple(full) if full and IS_FULL else tuple(sizes)
    return Row(
        f"growth-{name}",
        18,
        f"how cost grows: {work}",
        goals=(),
        open=partial(open_growth, run=run, sizes=chosen, unit=unit),
        variants=(Variant(settings={"logbus": "alone on the machine, its defaults"}),),
        note=note,
        quick=False,
        rounds=1,
        seconds_max=SECONDS_MAX,
        apart=True,
    )


ROWS = (
    _row(
        "partitions",
        "partitions of one broker",
        partitions,
        (1, 10, 100, 500, 1000, 2000),
        full=(1, 10, 100, 500, 1000, 2000, 4000),
        note="create and restart wait for the leader of the last partition; there is a restart "
        "after a clean stop and after kill -9. The rate of producing falls when the 20 MB become "
        "many small appends and flushes of many files; larger pieces raise it. A restart costs "
        "processor time for each partition: half to open and check its files, half to learn that "
        "the broker leads it. After kill -9, the broker also checks the records behind the "
        "recovery point. Opening partitions at their first use would shorten a restart",
    ),
    _row(
        "log-size",
        "a partition's log",
        log_size,
        (100, 400, 1_600),
        full=(1_000, 5_000, 10_000, 20_000),
        unit=lambda size: f"{size:,} MB",
        note="GROWTH=full writes 1 to 20 GB; the looked-up timestamps are anywhere in the log; "
        "retention_s includes up to a second until the broker checks retention. Indexes find "
        "offsets and timestamps, and after kill -9 the broker reads only records behind the "
        "recovery point. Three costs grow with the number of segments: a restart checks the files "
        "of each segment, a timestamp lookup loads the index of a segment at its first use, and "
        "retention renames the files of all old segments together. Larger segments than these of "
        "64 MB reduce the costs (the default is 1 GB)",
    ),
    _row(
        "brokers",
        "brokers on the same cores",
        brokers,
        (1, 2, 3),
        note="all brokers share the same two cores. The cost of copies grows, because each copy "
        "is appended and flushed too; more cores and disks reduce it. idle_broker_percent covers "
        "all brokers together. Each broker fetches from every other broker twice a second, so it "
        "grows with the square of the brokers, not with partitions; a longer "
        "replica.fetch.wait.max.ms reduces it",
    ),
    _row(
        "connections",
        "consumers that wait at the end of a partition",
        connections,
        (1, 10, 100, 1000),
        note="each consumer fetches again every 500 ms, as Kafka's clients do; one process runs "
        "all consumers. The cost of idle consumers and the time to wake them grow when requests "
        "and responses dominate. A longer fetch.max.wait.ms reduces only the cost of idling",
    ),
    _row(
        "members",
        "members of one Kafka group",
        group_members,
        (1, 10, 100, 300, 1000),
        note="all members join together from one process; then each sends a heartbeat every 3 s. "
        "stable_s includes the 250 ms for which a new group waits for more members "
        "(group.initial.rebalance.delay.ms), twice if members join meanwhile. The rest grows with "
        "the broker's cost of joins. Heartbeats cost only the coordinator: a longer "
        "heartbeat.interval.ms reduces them, and other groups may have other coordinators",
    ),
)
