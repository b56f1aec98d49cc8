"""Run the demo: start all processes, send and count lines, compare the totals, stop all processes.

``run`` stops every process that it started, also after an error.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from broker_lite.bus import connect
from broker_lite.client import Admin
from broker_lite.errors import RequestTimedOutError
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import find_jars, find_java
from broker_lite.metadata.zookeeper.blocking import read_group_offsets
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from pyspark_logbus.demo import query, sources
from pyspark_logbus.demo.results import Results
from pyspark_logbus.demo.screen import Progress, Screen
from pyspark_logbus.demo.shipper import Shipper

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LINES_TOPIC = "demo.lines"
COUNTS_TOPIC = "demo.counts"
GROUP = "demo"
PARTITIONS = 4
OWN_LINES = 500
"""Number of log lines from the demo's own ZooKeeper, brokers and Spark. The demo sends them after
the machine's lines."""
FINISH_SECONDS = 120.0
"""Seconds that the query may take to catch up after the last line is acknowledged."""
_CHECK_SECONDS = 0.3


class Plan(NamedTuple):
    """The demo's options.

    ``seconds`` is the time over which the lines are sent. With ``kill`` the demo sends SIGKILL to
    a partition's leader as soon as half of the lines are acknowledged.
    """

    file: Path | None
    lines_max: int
    brokers: int
    seconds: float
    kill: bool = False


TOTALS = {
    "sent": "lines shipped and acknowledged",
    "end_offsets": f"end offsets of {LINES_TOPIC}",
    "rows_read": "rows read by the query",
    "counted": "sum of the counts",
    "committed": f"offsets of group {GROUP} in ZooKeeper",
}
"""The five totals that the demo compares: name and meaning. They must all equal the number of
lines."""


class DemoTotals(NamedTuple):
    """The result of a demo: the number of lines to send, the five totals (TOTALS), the lines by
    kind, and the demo's length in seconds."""

    lines: int
    totals: Mapping[str, int]
    kinds: Mapping[str, int]
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether each total equals the number of lines to send."""
        return set(self.totals.values()) == {self.lines}


class DemoParts(NamedTuple):
    """The objects of a running demo: the admin client, the sender of the lines, the reader of the
    counts, and the Spark query."""

    admin: Admin
    shipper: Shipper
    results: Results
    query: StreamingQuery


def run(plan: Plan, screen: Screen) -> DemoTotals:
    """Run the demo and return its totals. Without lines to send, the totals are empty.

    Raises OSError if the file cannot be read, and MissingDependencyError if Java is missing. Both
    errors come before any process starts.
    """
    started = time.monotonic()
    find_java()
    find_jars()
    if plan.file is not None:
        line_sources = sources.from_file(plan.file, plan.lines_max)
    else:
        line_sources = sources.from_machine(plan.lines_max)
    lines = [line for source in line_sources for line in source.lines]
    own_count = OWN_LINES if plan.file is None else 0
    for source in line_sources:
        note = f" ({source.note})" if source.note else ""
        screen.say(f"  {len(source.lines):>8,} lines  {source.name}{note}")
    if own_count:
        screen.say(f"  {own_count:>8,} lines  from the logs of the demo's own processes")
    if not lines and not own_count:
        screen.say("No log lines found. Name a file with --file.")
        return DemoTotals(0, {}, {})
    directory = Path(tempfile.mkdtemp(prefix="logbus-demo-"))
    is_over = False
    try:
        screen.open(directory / "output.log")
        with contextlib.ExitStack() as stack:
            try:
                parts, cluster = _start(
                    plan, lines, own_count, directory=directory, screen=screen, stack=stack
                )
                _follow(parts, cluster, screen, kill=plan.kill)
                done = _reconcile(parts, cluster, screen)
            except (KeyboardInterrupt, SystemExit):
                # The first signal starts an orderly stop. Ignore later ones: they would leave
                # processes behind.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                screen.say("\nStopping …")
                is_over = True
                raise
        is_over = True
    finally:
        screen.close()
        if is_over:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            screen.say(f"The demo failed. Its logs are in {directory}")
    seconds = time.monotonic() - started
    screen.say(f"All processes stopped after {seconds:.0f} s.")
    return done._replace(seconds=round(seconds, 1))


def _start(
    plan: Plan,
    lines: list[bytes],
    own_count: int,
    *,
    directory: Path,
    screen: Screen,
    stack: contextlib.ExitStack,
) -> tuple[DemoParts, LocalCluster]:
    """Start the cluster and Spark in parallel. Then create the topics and start the query, the
    sender and the reader. ``stack`` receives the functions that stop them."""
    cluster = LocalCluster(
        plan.brokers, directory=directory / "cluster", zookeeper_log_level="INFO"
    )
    began = time.monotonic()
    ready_after: list[float] = []
    screen.say(
        f"\nStarting ZooKeeper, {_brokers(plan.brokers)} and Spark in {directory}; "
        "this takes about ten seconds …"
    )
    # Start Spark in this thread: its lookup of formats uses the thread's active session.
    with ThreadPoolExecutor(1, "demo-cluster") as pool:
        stack.callback(cluster.stop)
        starting = pool.submit(cluster.start)
        starting.add_done_callback(lambda _: ready_after.append(time.monotonic() - began))
        stack.callback(query.stop_session)
        spark = query.start_session(directory)
        starting.result()
    screen.say(
        f"ZooKeeper {cluster.zookeeper} and {_brokers(plan.brokers)} {cluster.bootstrap_servers} "
        f"were up after {ready_after[0]:.1f} s, Spark {spark.version} after "
        f"{time.monotonic() - began:.1f} s\n"
    )
    bus = stack.enter_context(connect(cluster.bootstrap_servers))
    bus.create_topic(LINES_TOPIC, partitions=PARTITIONS)
    bus.create_topic(COUNTS_TOPIC, partitions=PARTITIONS)
    logs = [broker.log for broker in cluster.brokers] + [directory / "spark.log"]
    if cluster.zookeeper_server is not None:
        logs.append(cluster.zookeeper_server.log)
    shipper = Shipper(
        bus,
        LINES_TOPIC,
        lines,
        seconds=plan.seconds,
        own=sources.FileTail(lambda: logs).lines,
        own_count=own_count,
    )
    results = Results(bus, COUNTS_TOPIC)
    counting = query.start_counting(
        spark,
        cluster.bootstrap_servers,
        lines=LINES_TOPIC,
        counts=COUNTS_TOPIC,
        group=GROUP,
        checkpoint=directory / "checkpoint",
    )
    stack.callback(_stop_query, counting)
    admin = stack.enter_context(Admin(cluster.bootstrap_servers, client_id="logbus-demo"))
    shipper.start()
    stack.callback(shipper.stop)
    results.start()
    stack.callback(results.stop)
    return DemoParts(admin, shipper, results, counting), cluster


def _brokers(count: int) -> str:
    return f"{count} broker{'s' if count != 1 else ''}"


def _stop_query(counting: StreamingQuery) -> None:
    # Ignore errors: stop() raises that of a failed query, which is already reported. Py4J errors
    # mean that Spark has already exited.
    with contextlib.suppress(PySparkException, Py4JError, OSError):
        counting.stop()


def _follow(parts: DemoParts, cluster: LocalCluster, screen: Screen, *, kill: bool) -> None:
    """Draw the progress until the query has committed all lines and the reader has read all counts.

    Raises the error of the sender, the reader or the query if one of them failed. Raises
    RequestTimedOutError if the query has not caught up FINISH_SECONDS after the last line.
    """
    deadline: float | None = None
    for progress in _progress(parts):
        screen.draw(progress, parts.results.take_changed(8))
        if kill and 2 * progress.shipped >= progress.total:
            kill = False
            _kill_leader(parts, cluster, screen)
        if parts.shipper.is_done:
            deadline = deadline or time.monotonic() + FINISH_SECONDS
            written = sum(_ends(parts.admin, COUNTS_TOPIC).values())
            if progress.lag == 0 and 0 < written == parts.results.rows:
                screen.draw(progress, parts.results.take_changed(8), force=True)
                return
            if time.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"the query did not catch up within {FINISH_SECONDS:.0f} s of the last "
                    "input line"
                )
        time.sleep(_CHECK_SECONDS)


def _kill_leader(parts: DemoParts, cluster: LocalCluster, screen: Screen) -> None:
    tp = TopicPartition(LINES_TOPIC, 0)
    known = parts.admin.cluster([LINES_TOPIC]).partition(tp)
    broker = next(b for b in cluster.brokers if known is not None and b.id == known.leader)
    screen.say(f"\nkill -9 of broker {broker.id}, the leader of {tp}; it is not restarted\n")
    broker.kill()


def _progress(parts: DemoParts) -> Iterator[Progress]:
    while True:
        for error in (parts.shipper.error, parts.results.error, parts.query.exception()):
            if error is not None:
                raise error
        ends = _ends(parts.admin, LINES_TOPIC)
        committed = parts.admin.committed(GROUP, list(ends))
        lag = None
        if committed:
            lag = sum(
                end - committed[tp].offset if tp in committed else end for tp, end in ends.items()
            )
        done = _rows_by_batch(parts.query)
        yield Progress(
            parts.shipper.acknowledged,
            parts.shipper.total,
            sum(done.values()),
            parts.results.rows,
            lag,
            len(done),
        )


def _rows_by_batch(counting: StreamingQuery) -> dict[int, int]:
    """Return the number of rows read in each completed micro-batch, by batch number.

    Spark reports a trigger without data under the batch number of the previous trigger, so such
    reports are ignored.
    """
    rows: dict[int, int] = {}
    for entry in counting.recentProgress:
        rows[entry["batchId"]] = max(rows.get(entry["batchId"], 0), entry["numInputRows"])
    return rows


def _ends(admin: Admin, topic: str) -> dict[TopicPartition, int]:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    last = admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
    first = admin.list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    return {tp: last[tp].offset - first[tp].offset for tp in partitions}


def _reconcile(parts: DemoParts, cluster: LocalCluster, screen: Screen) -> DemoTotals:
    committed = read_group_offsets(cluster.zookeeper, GROUP)
    totals = {
        "sent": parts.shipper.acknowledged,
        "end_offsets": sum(_ends(parts.admin, LINES_TOPIC).values()),
        "rows_read": sum(_rows_by_batch(parts.query).values()),
        "counted": parts.results.total(),
        "committed": sum(at.offset for at in committed.values()),
    }
    by_kind = parts.results.by_kind()
    done = DemoTotals(parts.shipper.total, totals, by_kind)
    screen.say("\nLines by kind:")
    for kind, count in list(by_kind.items())[:10]:
        screen.say(f"  {kind:<24.24} {count:>9,}")
    if len(by_kind) > 10:
        rest = sum(list(by_kind.values())[10:])
        screen.say(f"  {f'and {len(by_kind) - 10} more':<24} {rest:>9,}")
    screen.say("\nThe totals agree:" if done.agrees else "\nThe totals do not agree:")
    for name, value in totals.items():
        mark = "ok" if value == done.lines else f"expected {done.lines:,}"
        screen.say(f"  {TOTALS[name]:<36} {value:>9,}  {mark}")
    screen.say("\nCommitted by the query, read from ZooKeeper:")
    for tp, at in sorted(committed.items()):
        path = f"/consumers/{GROUP}/offsets/{tp.topic}/{tp.partition}"
        screen.say(f"  {path:<44} {at.offset:>9,}")
    screen.say(_NEXT)
    return done


_NEXT = """
Next:
  logbus up -d                                 start a cluster that keeps running
  logbus topic create events -p 3
  tail -f any.log | logbus produce events
  logbus consume events
  spark.readStream.format("logbus").option("subscribe", "events").load()
  logbus demo --file any.log                   this demo with your file (also .gz)
  logbus demo --kill                           this demo, with one broker killed halfway
"""
