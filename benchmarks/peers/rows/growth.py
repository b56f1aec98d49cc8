"""Measure how logbus's cost grows. Each benchmark (a *row* of the table of results) increases one
quantity, such as the number of connections.

The table has a column for each value of that quantity, the smallest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from broker_lite.model import EARLIEST_TIMESTAMP, TopicPartition
from broker_lite.record.arrow import Columns
from peers import fetch, group_member
from peers.bench import Bench
from peers.figures import percentile, timed
from peers.meter import CpuUse, resident_mb
from peers.row import Measures, Row, Side, Variant
from peers.servers import LogbusServers, dotted
from peers.waiters import Waiters

VALUE_BYTES = 200
PARTITIONS_A_MEMBER = 3
IDLE_SECONDS = 15.0
"""Duration of an idle measurement in seconds.

This time covers many replication fetches, ZooKeeper pings and periodic tasks.
"""
READY_SECONDS = 300.0
SETTLE_SECONDS = 20.0
SETTLED_PERCENT = 2.0
RETENTION_SECONDS_MAX = 60.0
SECONDS_MAX = 1800.0
"""Maximum duration, in seconds, of the measurement of one size, such as one number of partitions. A
longer measurement fails."""
ROOM = 1.3
"""Necessary free disk space, as a multiple of the log's size."""
MB = 1_000_000

Run = Callable[[Bench, int], Measures]


@contextlib.contextmanager
def alone(bench: Bench, brokers: int = 1, **config: str) -> Iterator[LogbusServers]:
    """Stop all other servers of the run, then start a cluster; yield it."""
    bench.stop_all()
    with LogbusServers(brokers, dotted(config)) as logbus, bench.counting(logbus.processes):
        yield logbus


def settle(logbus: LogbusServers) -> None:
    """Wait until the brokers are idle, at most SETTLE_SECONDS."""
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until:
        if idle_percent(logbus, 1.0)["idle_broker_percent"] <= SETTLED_PERCENT:
            return


def idle_percent(logbus: LogbusServers, seconds: float = IDLE_SECONDS) -> Measures:
    """Return the percentage of a core that the processes of each role (broker, zookeeper) use while
    clients send no requests."""
    with CpuUse(logbus.processes()) as use:
        time.sleep(seconds)
    return {f"idle_{role}_percent": value for role, value in use.percent.items()}


def restarts(logbus: LogbusServers, last: TopicPartition) -> Measures:
    """Restart the only broker after a clean stop, and after kill -9; return the seconds until it
    accepts a record in the partition ``last``."""
    (broker,) = logbus.cluster.brokers
    found = {}
    for name, end in (("restart_s", broker.stop), ("restart_after_kill_s", broker.kill)):
        end()
        before = time.perf_counter()
        broker.start(wait=False)
        broker.wait_ready(READY_SECONDS)
        with logbus.bus.producer() as producer:
            producer.send(last.topic, b"first", partition=last.partition).result(READY_SECONDS)
        found[name] = time.perf_counter() - before
    return found


def column(values: list[bytes]) -> Columns:
    return Columns(len(values), None, pa.array(values, pa.binary()))


def write_columns(logbus: LogbusServers, places: list[TopicPartition], piece: Columns) -> float:
    """Write ``piece`` to each of ``places``; return the seconds. First send a record to each
    partition, as a warm-up."""
    with logbus.bus.producer() as producer:

        def write() -> None:
            for place in places:
                producer.send_columns(place.topic, piece, place.partition)
            producer.flush()

        for place in dict.fromkeys(places):
            producer.send(place.topic, b"warm", partition=place.partition)
        producer.flush()
        return timed(write)


def partitions(bench: Bench, count: int) -> Measures:
    """Measure ``count`` partitions: create a topic, write 20 MB in all, restart the broker.

    Creation and restarts wait for the leader of the last partition. With more partitions the
    produce rate falls: the 20 MB become many small appends, and flushes of many files. A restart
    costs processor time for each partition: half to open and check its files, half to learn that
    the broker leads it. After kill -9, the broker also checks the records after the recovery
    point. Opening partitions at their first use would shorten a restart.
    """
    places = [TopicPartition("t", number) for number in range(count)]
    with alone(bench) as logbus:
        create_s = timed(lambda: logbus.bus.create_topic("t", count, 1))
        settle(logbus)
        idle = idle_percent(logbus)
        piece = column(bench.lines.sized(100_000 // count, VALUE_BYTES))
        produce_s = write_columns(logbus, places, piece)
        return {
            "create_topic_s": create_s,
            **idle,
            "produce_20_mb_s": produce_s,
            "broker_mb": resident_mb(*logbus.processes()["broker"]),
            **restarts(logbus, places[-1]),
        }


def log_size(bench: Bench, megabytes: int) -> Measures:
    """Measure a log of ``megabytes`` MB: fill one partition, read it, restart, delete old segments.

    Segments have 64 MB, and the newest segment is not deleted. The broker finds offsets in indexes,
    and after kill -9 it reads only records after the recovery point, so both costs stay equal.
    Three costs grow with the number of segments: a restart checks the files of each segment, a
    timestamp lookup loads the index of a segment at its first use, and retention renames the files
    of all old segments together. Larger segments reduce the costs (the default is 1 GB).
    """
    megabytes, folder = bench.size(megabytes), tempfile.gettempdir()
    free = shutil.disk_usage(folder).free / MB
    if free < ROOM * megabytes:
        raise fetch.Cannot(
            f"{folder} has {free:,.0f} MB free, the row needs {ROOM * megabytes:,.0f}"
        )
    config = {"segment.bytes": str(64 * MB), "file.delete.delay.ms": "1000"}
    with alone(bench, log_retention_check_interval_ms="1000") as logbus:
        logbus.bus.create_topic("t", 1, 1, config)
        rows = column(bench.lines.sized(50_000, VALUE_BYTES))
        count = max(1, megabytes * MB // (rows.row_count * VALUE_BYTES))
        tp = TopicPartition("t", 0)
        began_ms = int(time.time() * 1000)
        written = write_columns(logbus, [tp] * count, rows)
        total = count * rows.row_count
        return {
            "write_mb_per_s": total * VALUE_BYTES / MB / written,
            **_reads(logbus, tp, total, began_ms),
            **restarts(logbus, tp),
            **_retention(logbus, tp),
        }


def _reads(logbus: LogbusServers, tp: TopicPartition, total: int, began_ms: int) -> Measures:
    """Measure three reads: a record at an offset, a timestamp lookup, and the last 200 MB (or the
    whole log, if it has less).

    The timestamps lie between ``began_ms``, before the first record, and now."""
    places, ended_ms = random.Random(1), int(time.time() * 1000)
    start = max(0, total - 1_000_000)
    with logbus.bus.consumer(tp.topic, start="earliest") as consumer:

        def seek() -> None:
            consumer.seek(tp, places.randrange(total))
            consumer.poll(5.0)

        def read() -> None:
            left = total - start
            while left > 0:
                left -= consumer.poll_arrow(5.0).num_rows

        consumer.poll(5.0)
        seeks = [timed(seek) for _ in range(30)]
        consumer.seek(tp, start)
        read_s = timed(read)
    times = [{tp: places.randrange(began_ms, ended_ms)} for _ in range(30)]
    lookups = [timed(logbus.bus.admin.list_offsets, each) for each in times]
    return {
        "read_mb_per_s": (total - start) * VALUE_BYTES / MB / read_s,
        "seek_p50_ms": 1000 * percentile(seeks, 50),
        "offset_of_time_p50_ms": 1000 * percentile(lookups, 50),
    }


def _retention(logbus: LogbusServers, tp: TopicPartition) -> Measures:
    """Measure how retention deletes all segments but the newest while a producer runs.

    ``retention_s``, the time until the segments are deleted, includes up to a second until the
    broker checks retention.
    """
    times: list[float] = []
    done = threading.Event()

    def write() -> None:
        with logbus.bus.producer(linger_ms=0) as producer:
            send = partial(producer.send, tp.topic, b"meanwhile", partition=0)
            while not done.is_set():
                times.append(timed(lambda: send().result(60)))
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
        # segment: the deletion, too, may delay the measured writes.
        time.sleep(2.5)
    finally:
        done.set()
        writer.join()
    return {"retention_s": gone, "write_during_retention_max_ms": 1000 * max(times)}


def brokers(bench: Bench, count: int) -> Measures:
    """Measure a cluster of ``count`` brokers with two partitions for each broker: first with one
    replica of each partition, then with a replica of each partition on every broker.

    All brokers share the same two cores. The cost of replication grows, because each replica is
    written and flushed; more cores and disks reduce it. ``idle_broker_percent`` covers all brokers
    together. Each broker fetches from every other broker twice a second, so this cost grows with
    the square of the number of brokers, not with partitions; a longer ``replica.fetch.wait.max.ms``
    reduces it.
    """
    rows = column(bench.lines.sized(5_000, VALUE_BYTES))
    megabytes = 100 * rows.row_count * VALUE_BYTES / MB
    with alone(bench, count) as logbus:
        found: Measures = {}
        for copies, name in {1: "rf_1", count: "rf_all"}.items():
            logbus.bus.create_topic(name, 2 * count, copies)
            places = [TopicPartition(name, number % (2 * count)) for number in range(100)]
            found[f"{name}_mb_per_s"] = megabytes / write_columns(logbus, places, rows)
        found.setdefault("rf_1_mb_per_s", found["rf_all_mb_per_s"])
        with logbus.bus.producer(linger_ms=0) as producer:
            acks = [
                timed(lambda: producer.send("rf_all", b"x" * 100, partition=0).result(60))
                for _ in range(200)
            ]
        found["rf_all_ack_p50_ms"] = 1000 * percentile(acks, 50)
        settle(logbus)
        return {**found, **idle_percent(logbus)}


def connections(bench: Bench, count: int) -> Measures:
    """Measure ``count`` consumers, each with its own connection, at the end of one partition.

    Each consumer fetches again every 500 ms, as Kafka's clients do; one process runs all consumers.
    The cost of idle consumers and the time to wake them grow with the number of requests and
    responses. A longer ``fetch.max.wait.ms`` reduces only the cost of idling.
    """
    with alone(bench) as logbus:
        topic_id = logbus.bus.create_topic("t", 1, 1)
        empty_mb = resident_mb(*logbus.processes()["broker"])
        waiters = Waiters(logbus.cluster.brokers[0].port, topic_id, count)
        try:
            waiters.ask(0)
            waiters.idle(1.0)
            with CpuUse(logbus.processes()) as use:
                waiters.idle(IDLE_SECONDS)
            used_mb = resident_mb(*logbus.processes()["broker"]) - empty_mb
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
            "idle_broker_percent": use.percent["broker"],
            "kb_a_connection": max(0.0, used_mb) * 1000 / count,
            "all_have_it_p50_ms": percentile(times, 50),
        }


def group_members(bench: Bench, count: int) -> Measures:
    """Measure a Kafka group of ``count`` members that do not read: the time until the group is
    stable, the latency of heartbeats, and the processor time of the servers.

    All members join together from one process; then each sends a heartbeat every 3 s. ``stable_s``
    includes the 250 ms for which a new group waits for more members
    (``group.initial.rebalance.delay.ms``), twice if members join meanwhile. The rest grows with the
    broker's cost of joins. Heartbeats cost only the coordinator. A longer
    ``heartbeat.interval.ms`` lowers this cost; other groups may have other coordinators.
    """
    with alone(bench) as logbus:
        logbus.bus.create_topic(group_member.TOPIC, 1, 1)
        return asyncio.run(_group(logbus, count))


async def _group(logbus: LogbusServers, count: int) -> Measures:
    members = [group_member.GroupMember("crew") for _ in range(count)]
    for each in members:
        await each.connect(logbus.bootstrap_servers)
    with CpuUse(logbus.processes()) as joining:
        # The members never read their assigned partitions, so these need not exist.
        partitions = PARTITIONS_A_MEMBER * count
        await asyncio.gather(*(each.join(count, partitions) for each in members))
    took: list[float] = []
    with CpuUse(logbus.processes()) as living:
        until = time.perf_counter() + IDLE_SECONDS
        await asyncio.gather(*(_live(each, until, took) for each in members))
    for each in members:
        each.close()
    return {
        "stable_s": joining.wall_s,
        "broker_cpu_to_stable_s": joining.seconds["broker"],
        "zookeeper_cpu_to_stable_s": joining.seconds["zookeeper"],
        "heartbeats_per_s": len(took) / IDLE_SECONDS,
        "heartbeat_p50_ms": percentile(took, 50),
        "heartbeat_p99_ms": percentile(took, 99),
        **{f"{role}_percent": value for role, value in living.percent.items()},
    }


async def _live(member: group_member.GroupMember, until: float, took: list[float]) -> None:
    """Send heartbeats until the time ``until``, the first after a random delay. Add each latency in
    ms to ``took``."""
    pause = group_member.HEARTBEAT_SECONDS
    await asyncio.sleep(random.random() * pause)
    while (before := time.perf_counter()) < until:
        await member.heartbeat()
        took.append((time.perf_counter() - before) * 1000)
        await asyncio.sleep(min(pause, max(0.0, until - time.perf_counter())))


@contextlib.contextmanager
def open_growth(
    bench: Bench, _: Variant, *, run: Run, sizes: Sequence[int], unit: str
) -> Iterator[Mapping[str, Side]]:
    def measured(size: int) -> Measures:
        return {key: round(value, 4) for key, value in run(bench, size).items()}

    # End the servers of earlier benchmarks. If they ended during the measurement, the meter would
    # count their processor time.
    bench.stop_all()
    chosen = sizes if not bench.quick else (sizes[0], sizes[len(sizes) // 2])
    yield {f"{size:,}{unit}": Side(partial(measured, size), within=bench.within) for size in chosen}


def _row(name: str, work: str, run: Run, *sizes: int, unit: str = "") -> Row:
    return Row(
        f"growth-{name}",
        18,
        f"how cost grows: {work}",
        goals=(),
        open=partial(open_growth, run=run, sizes=sizes, unit=unit),
        variants=(Variant(settings={"logbus": "alone on the machine, its defaults"}),),
        quick=False,
        rounds=1,
        seconds_max=SECONDS_MAX,
        apart=True,
    )


ROWS = (
    _row("partitions", "partitions of one broker", partitions, 1, 10, 100, 500, 1000, 2000),
    _row("log-size", "a partition's log", log_size, 1_000, 5_000, 10_000, 20_000, unit=" MB"),
    _row("brokers", "brokers on the same cores", brokers, 1, 2, 3),
    _row("connections", "consumers that wait at the end of a partition", connections,
         1, 10, 100, 1000),
    _row("members", "members of one Kafka group", group_members, 1, 10, 100, 300, 1000),
)  # fmt: skip
