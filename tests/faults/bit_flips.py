"""Flip hundreds of single bits in the files of one or two of three replicas.

Bits in segments flip on running and stopped brokers. Bits in indexes, snapshots and checkpoints
flip on stopped brokers, after a kill -9 of some or all brokers or a clean shutdown. After each
round, every broker leads in turn; a reader reads all records from this leader and looks records up
by timestamp. Readers must get the written records from the log start offset on, without an error.
In the end, all replicas must have their former bytes.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from faults.history import read_log
from faults.replicated import Replicated, content
from support.log_batches import iter_headers
from support.patience import until

from broker_lite.bus import Bus
from broker_lite.errors import LogbusError
from broker_lite.local.broker import LocalBroker
from broker_lite.model import EARLIEST_TIMESTAMP, ListedOffset, TopicPartition

PARTITIONS = 3
BATCHES = 100
"""Number of batches in each partition, which fill two and a half segments."""
BATCH_ROWS = 20
VALUE_BYTES = 1000
FLIPS_PER_ROUND = 40
ATTEMPTS = 50
"""Maximum times that one broker loses leadership in a round: each read may find more damage."""
SMALL_FILES = (".index", ".timeindex", ".snapshot", "-checkpoint")
SMALL_SHARE = 0.35
DELETED = BATCH_ROWS // 2
"""Records deleted from the start of each partition: half of its first batch."""
MOMENT_EVERY = 10
"""One batch in this many is looked up by its timestamp."""
UNGUARDED_FROM, UNGUARDED_BYTES = 12, 4
"""The bytes of the leader epoch in a batch's header.

No checksum covers these bytes. A broker compares them with its file of leader epochs only when it
copies or scans the batch, not at every read.
"""
ALL_KILLED = "all killed"
Rows = dict[int, list[tuple[int, bytes]]]
HOW = ("running", "killed", "stopped", ALL_KILLED)


class BitFlips:
    """Flips bits in the files of a topic that was written once, and remembers its replicas'
    bytes."""

    def __init__(self, cluster: Replicated, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.flipped: Counter[str] = Counter()
        self.rounds: Counter[str] = Counter()
        self.topic = cluster.make_topic(
            PARTITIONS, segment_bytes=1 << 20, max_message_bytes=1 << 20
        )
        self._tps = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]
        self._moments: list[int] = []
        self._write()
        cluster.admin.delete_records(dict.fromkeys(self._tps, DELETED))
        cluster.wait_in_sync(self.topic)
        self.rows = read_log(cluster.bootstrap_servers, self.topic)
        assert {len(rows) for rows in self.rows.values()} == {BATCHES * BATCH_ROWS - DELETED}
        self.places = self._look_up()
        self._topic_id = cluster.admin.cluster([self.topic]).topic_id(self.topic)
        self._unguarded: dict[int, set[int]] = {}
        self.logs = {n: content(self._folder(self._brokers[0], n)) for n in range(PARTITIONS)}
        for partition, log in self.logs.items():
            starts = (position for position, _ in iter_headers(log))
            at = {start + UNGUARDED_FROM + n for start in starts for n in range(UNGUARDED_BYTES)}
            self._unguarded[partition] = at
        self._wait_repaired()

    def round(self, flips: int) -> None:
        """Flip this many bits; wait until the brokers have found and repaired all damage.

        Raises AssertionError if a reader gets a wrong record or an error, or if damage remains.
        """
        victims = self.random.sample(self._brokers, self.random.choice((1, 2)))
        how = self.random.choice(HOW)
        self.rounds[f"{how}, {len(victims)} of 3"] += 1
        stricken = self._brokers if how == ALL_KILLED else victims
        for broker in stricken if how == ALL_KILLED else ():
            # Suspend all brokers first, so that no broker notices the death of another broker.
            broker.pause()
        for broker in stricken:
            if how == "stopped":
                broker.stop()
            elif how != "running":
                broker.kill()
        for _ in range(flips):
            self._flip(self.random.choice(victims), is_down=how != "running")
        self.cluster.start_all()
        for broker in self._brokers:
            self._read_from(broker)
        self.cluster.wait_in_sync(self.topic)
        self._wait_repaired()

    @property
    def _brokers(self) -> list[LocalBroker]:
        return list(self.cluster.brokers.values())

    def _folder(self, broker: LocalBroker, partition: int) -> Path:
        return broker.directory / "data" / f"{self._topic_id}-{partition}"

    def _write(self) -> None:
        with Bus(
            self.cluster.bootstrap_servers, client_id="flips", options={}
        ).producer() as sender:
            for number in range(BATCHES):
                if number % MOMENT_EVERY == 0:
                    self._moments.append(int(time.time() * 1000))
                for partition in range(PARTITIONS):
                    values = [
                        b"%d-%d-%d " % (partition, number, row) + self.random.randbytes(VALUE_BYTES)
                        for row in range(BATCH_ROWS)
                    ]
                    table = pa.table({"value": pa.array(values, pa.binary())})
                    sender.send_arrow(self.topic, table, partition=partition)
                sender.flush()

    def _flip(self, broker: LocalBroker, *, is_down: bool) -> None:
        partition = self.random.randrange(PARTITIONS)
        folder = self._folder(broker, partition)
        logs = paths = sorted(folder.glob("*.log"))
        if is_down and self.random.random() < SMALL_SHARE:
            places = [*folder.iterdir(), *(broker.directory / "data").glob("*-checkpoint")]
            paths = sorted(path for path in places if path.name.endswith(SMALL_FILES))
        path = self.random.choice([path for path in paths if path.stat().st_size])
        at = self.random.randrange(path.stat().st_size)
        if path in logs:
            before = sum(log.stat().st_size for log in logs[: logs.index(path)])
            while before + at in self._unguarded[partition]:
                at += 1
        with path.open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << self.random.randrange(8)]))
            file.flush()
            os.fsync(file.fileno())
        self.flipped["segment" if path.suffix == ".log" else path.name.lstrip("0123456789")] += 1

    def _read_from(self, broker: LocalBroker) -> None:
        """Read all records; repeat this until the broker was the leader for the whole read."""
        others = [other.id for other in self._brokers if other is not broker]
        for _ in range(ATTEMPTS):
            self.cluster.wait_in_sync(self.topic)
            try:
                self.cluster.admin.reassign({at: [broker.id, *others] for at in self._tps})
                self.cluster.admin.elect_leaders(self._tps)
            except LogbusError:
                # The broker lost leadership because it found damage. Read again.
                continue
            before = self._leaders()
            rows = read_log(self.cluster.bootstrap_servers, self.topic)
            assert rows == self.rows, f"broker {broker.id} returned {self._unlike_rows(rows)}"
            assert self._look_up() == self.places, (
                f"broker {broker.id} finds other offsets by timestamp"
            )
            if before == self._leaders() and {leader for leader, _ in before} == {broker.id}:
                return
        raise AssertionError(f"broker {broker.id} does not keep the leadership: {self._leaders()}")

    def _unlike_rows(self, rows: Rows) -> list[str]:
        return [
            f"{len(rows[n])} of {n}, from {rows[n][0][0]}, not {len(all_)} from {all_[0][0]}"
            for n, all_ in self.rows.items()
            if rows[n] != all_
        ]

    def _look_up(self) -> list[dict[TopicPartition, ListedOffset]]:
        """Return, for each of some timestamps, the first offset at or after it in every partition.

        The last element has the log start offsets.
        """
        times = (*self._moments, EARLIEST_TIMESTAMP)
        return [self.cluster.admin.list_offsets(dict.fromkeys(self._tps, at)) for at in times]

    def _leaders(self) -> list[tuple[int, int]]:
        rows = self.cluster.admin.cluster([self.topic]).topics[self.topic].partitions
        return [(row.leader, row.leader_epoch) for row in rows]

    def _wait_repaired(self) -> None:
        until(self._unlike, lambda wrong: not wrong, what="not repaired: (broker, partition)")

    def _unlike(self) -> list[tuple[int, int]]:
        return [
            (broker.id, partition)
            for broker in self._brokers
            for partition, log in self.logs.items()
            if content(self._folder(broker, partition)) != log
        ]


def run(
    cluster: Replicated, random: Random, count: int, per_round: int = FLIPS_PER_ROUND
) -> dict[str, Any]:
    """Flip ``count`` bits in rounds; return descriptions of the flips.

    Raises AssertionError unless the brokers repair all damage.
    """
    flips = BitFlips(cluster, random)
    began = time.monotonic()
    while (left := count - flips.flipped.total()) > 0:
        flips.round(min(per_round, left))
        print(f"flips {flips.flipped.total()}/{count}", file=sys.stderr)
    return {
        "flips": flips.flipped.total(),
        "delivered_wrong": 0,
        "not_repaired": 0,
        "by_file": dict(flips.flipped),
        "by_round": dict(flips.rounds),
        "seconds": round(time.monotonic() - began),
    }
