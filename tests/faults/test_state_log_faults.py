"""Test the state log of transaction coordinators on real brokers while its leaders are killed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.patience import until

from broker_lite.bus import connect
from broker_lite.local.zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.real
PROGRAM = Path(__file__).with_name("state_broker.py")
_CHROOTS = itertools.count()


class StateProcess:
    """A process of ``state_broker`` and the lines that it printed."""

    def __init__(self, number: int, folder: Path, zookeeper: str) -> None:
        self.acked: dict[str, int] = {}
        """The highest acknowledged value of each key."""
        self.leads = False
        self.state: dict[str, str] | None = None
        self.port = 0
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(number), str(folder), zookeeper],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        until(lambda: self.port, what=f"broker {number} starts")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            verb, *words = line.split(maxsplit=1 if line.startswith(("state", "ready")) else -1)
            if verb == "ok":
                self.acked[words[0]] = max(self.acked.get(words[0], -1), int(words[1]))
            elif verb in ("loaded", "lost"):
                self.leads = verb == "loaded"
            elif verb == "state":
                self.state = json.loads(words[0])
            elif verb == "ready":
                self.port = json.loads(words[0])["port"]

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def dump(self) -> dict[str, str]:
        self.state = None
        self.say("dump")
        return until(lambda: self.state, lambda state: state is not None)  # type: ignore[no-any-return]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


class States:
    """Three brokers and the topic "state" with one partition, replicated to all three."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.folder = folder
        self.zookeeper = zookeeper
        self.at = {number: self.start(number) for number in (1, 2, 3)}
        self.sent = 0

    def start(self, number: int) -> StateProcess:
        return StateProcess(number, self.folder / str(number), self.zookeeper)

    def appended(self, leader: int, count: int) -> None:
        """Append values of 20 keys to the state log until ``count`` more are acknowledged; leave
        further values in flight."""
        process, last = self.at[leader], self.sent + count
        while self.sent < last + 20:
            process.say(f"append k{self.sent % 20} {self.sent}")
            self.sent += 1
        until(lambda: max(process.acked.values(), default=-1) >= last)

    def killed(self, leader: int) -> dict[str, int]:
        """Kill the leader while it appends; return the highest acknowledged value of each key."""
        process = self.at.pop(leader)
        process.kill()
        return process.acked

    def next_leader(self) -> int:
        """Wait until a broker has loaded the state, and return the broker's number."""
        leaders = until(lambda: [n for n, process in self.at.items() if process.leads])
        return int(leaders[0])


@pytest.fixture
def states(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> Iterator[States]:
    found = States(tmp_path, f"{zookeeper.address}/state-{next(_CHROOTS)}/logbus")
    try:
        with connect(f"127.0.0.1:{found.at[1].port}") as bus:
            bus.admin.create_topic("state", partitions=1, replication_factor=3)
        yield found
    finally:
        for process in found.at.values():
            process.kill()


def test_transaction_state_survives_two_leaders_killed_in_turn(states: States) -> None:
    first = states.next_leader()
    states.appended(first, 400)
    acked = states.killed(first)
    second = states.next_leader()
    check(states.at[second].dump(), acked)
    states.at[first] = states.start(first)
    states.appended(second, 400)
    acked = acked | states.killed(second)
    third = states.next_leader()
    check(states.at[third].dump(), acked)


def check(found: dict[str, str], acked: dict[str, int]) -> None:
    """Check that each key has its last acknowledged value, or a later value that was in flight."""
    assert len(acked) == 20
    lost = {key: (value, found.get(key)) for key, value in acked.items()
            if int(found.get(key, -1)) < value}  # fmt: skip
    assert not lost
