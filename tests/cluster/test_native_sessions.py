"""Test members of ZooKeeper-based groups whose session has ended, or may have ended.

A member may deliver records only while its *lease* holds, which ends before its session expires.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from cluster.test_native_groups import PATIENCE_S, drain, fill, member, owned, until
from kazoo.client import KazooClient

from broker_lite.bus import Bus
from broker_lite.errors import CoordinationUnavailableError, NotOwnerError
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata import znodes
from broker_lite.model import CommittedOffset, TopicPartition

SESSION_MS = 2000

SLEEPER = """
import sys
from broker_lite.bus import connect
from broker_lite.errors import CoordinationUnavailableError, NotOwnerError
bootstrap, topic, session_ms = sys.argv[1:]
bus = connect(bootstrap)
consumer = bus.consumer(
    topic, group=topic, coordination="zookeeper", start="earliest", auto_commit=False,
    session_timeout_ms=int(session_ms),
)
worked = {}
while len(worked) < 3:
    for record in consumer.poll(0.1, max_records=1):
        worked[record.topic, record.partition] = record.offset + 1
print("at work", flush=True)
sys.stdin.readline()
try:
    consumer.commit()
    print("committed", flush=True)
except (CoordinationUnavailableError, NotOwnerError) as error:
    print("refused", flush=True)
while True:
    for record in consumer.poll(0.1):
        print(record.value.decode(), flush=True)
"""


class Wire:
    """A TCP relay to ZooKeeper; ``cut`` stops the data without closing a connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition("/")[0].rpartition(":")
        self._there = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flows = threading.Event()
        self._flows.set()
        self._sockets = [self._listener]
        chroot = address.partition("/")[2]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}/{chroot}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._flows.clear()

    def heal(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        for each in self._sockets:
            # Wake the threads that wait for the socket.
            shut(each)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(self._there)
            self._sockets += [here, there]
            for source, target in ((here, there), (there, here)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        shut(target)


def shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire(cluster: LocalCluster) -> Iterator[Wire]:
    made = Wire(cluster.zookeeper)
    yield made
    made.close()


def test_member_cut_off_from_zookeeper_delivers_no_records_of_partitions_it_lost(
    bus: Bus, topic: str, wire: Wire
) -> None:
    """The brokers still answer this member, so the member itself must stop when its lease ends."""
    options = {"group": topic, "session_timeout_ms": SESSION_MS}
    with member(bus, topic, zookeeper=wire.address, auto_commit=False, **options) as alone:
        sent = fill(bus, topic, 0, 30)
        drain([alone], sent)
        alone.commit()
        with member(bus, topic, auto_commit=False, **options) as heir:
            both = [alone, heir]
            until(both, lambda: 0 not in owned(both) and sum(owned(both)) == 3)
            lost = alone.assignment()
            wire.cut()
            until([heir], lambda: owned([heir]) == [3])
            more = fill(bus, topic, 30, 60)
            assert alone.poll(0.2) == [], "it read on although its lease had ended"
            with pytest.raises((CoordinationUnavailableError, NotOwnerError)):
                alone.commit(dict.fromkeys(lost, 1))
            assert sorted(drain([heir], more)) == sorted(more)
            heir.commit()
            wire.heal()
            until(both, lambda: 0 not in owned(both) and sum(owned(both)) == 3)
            last = fill(bus, topic, 60, 90)
            assert sorted(drain(both, last)) == sorted(last)


def test_member_suspended_beyond_its_session_delivers_no_records_of_partitions_it_lost(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    """The process is suspended while it is returning hundreds of fetched records."""
    sent = fill(bus, topic, 0, 300)
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, cluster.bootstrap_servers, topic, str(SESSION_MS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        assert process.stdout.readline() == "at work\n"
        os.kill(process.pid, signal.SIGSTOP)
        with member(bus, topic, group=topic, auto_commit=False) as heir:
            got = until([heir], lambda: owned([heir]) == [3])
            drain([heir], set(sent) - set(got))
            heir.commit()
            process.stdin.write("\n")
            process.stdin.flush()
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout.readline() == "refused\n"
            found = {tp: row.offset for tp, row in bus.admin.committed(topic).items()}
            assert found == {TopicPartition(topic, n): 100 for n in range(3)}
            until([heir], lambda: owned([heir]) in ([1], [2]))
            mine = {tp.partition for tp in heir.assignment()}
            more = fill(bus, topic, 300, 330)
            theirs = [value for value in more if int(value) % 3 not in mine]
            assert sorted(process.stdout.readline().strip() for _ in theirs) == sorted(
                value.decode() for value in theirs
            ), "it returned records that were fetched before"
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances CLOCK_BOOTTIME by some seconds, as a suspend does.

    The clock starts one hour ahead, as on a machine that was suspended before.
    """
    slept, clock = [3600.0], time.clock_gettime

    def sleeping(which: int) -> float:
        return clock(which) + (slept[0] if which == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", sleeping)

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    return sleep


def test_poll_after_a_system_suspend_returns_nothing_until_the_session_is_confirmed(
    bus: Bus, topic: str, wire: Wire, asleep: Callable[[float], None]
) -> None:
    """``time.monotonic`` stands still during a suspend, so it cannot show that the session has
    expired."""
    sent = fill(bus, topic, 0, 60)
    native = {"zookeeper": wire.address, "session_timeout_ms": 30_000}
    with member(bus, topic, group=topic, **native) as consumer:
        got = until([consumer], lambda: owned([consumer]) == [3])
        wire.cut()  # The member has not reconnected yet when it wakes up.
        while not got:
            got += [record.value for record in consumer.poll(1.0, max_records=1)]
        asleep(40.0)
        assert consumer.poll(0.1) == []
        wire.heal()
        got += drain([consumer], set(sent) - set(got))
    group = f"{topic}-kafka"
    with bus.consumer(
        topic, group=group, start="earliest", heartbeat_interval_ms=10_000
    ) as consumer:
        kafka = [record.value for record in consumer.poll(10.0, max_records=1)]
        asleep(60.0)
        assert consumer.poll(0.1) == []
        consumer.core.membership.member.refresh_topics()  # type: ignore[attr-defined]
        kafka += drain([consumer], set(sent) - set(kafka))
    assert sorted(got) == sorted(kafka) == sorted(sent)


def test_zookeeper_refuses_a_commit_by_the_former_owner_of_a_partition(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    """When a partition gets a new owner, the owner rewrites the offset's znode. A commit with the
    former version of the znode must then fail."""
    tp = TopicPartition(topic, 0)
    path = znodes.offset_path(topic, *tp)
    with member(bus, topic, group=topic, auto_commit=False) as former:
        sent = fill(bus, topic, 0, 30)
        drain([former], sent)
        former.commit({tp: 4})
        zookeeper = KazooClient(cluster.zookeeper)
        zookeeper.start(PATIENCE_S)
        try:
            data, stat = zookeeper.get(path)
            zookeeper.set(path, data, stat.version)
        finally:
            zookeeper.stop()
            zookeeper.close()
        with pytest.raises(NotOwnerError):
            former.commit({tp: 9})
        assert bus.admin.committed(topic, [tp])[tp].offset == 4
        # The member claims the partition again, continues at the committed offset and commits.
        again = [value for value in sent if int(value) % 3 == 0][4:]
        assert sorted(drain([former], again)) == sorted(again)
        former.commit({tp: CommittedOffset(10)})
        assert bus.admin.committed(topic, [tp])[tp].offset == 10
