"""Run third-party clients as processes that are members of a Kafka group and print their records.

A thread reads the output of each process. Tests read assignments from DescribeGroups, because the
clients print them differently. A process that still runs at the end of a test is killed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import confluent_kafka.admin as confluent_admin

from support.patience import until

WAIT_S = 120.0
RECORD = re.compile(r"^(\d+) (\d+)$")
"""Matches a line with partition and offset, as most of the programs print records."""


def eventually(condition: Callable[[], object], said: Callable[[], object] = str) -> None:
    """Wait until ``condition`` holds; the failure message contains the result of ``said``."""
    until(condition, what=said, within_s=WAIT_S)


class Member:
    """A member's process. ``read`` holds the (partition, offset) pairs that it printed."""

    def __init__(self, command: list[str], record: re.Pattern[str], folder: Path) -> None:
        self.read: list[tuple[int, int]] = []
        self.said: list[str] = []
        self._record = record
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
        )
        self._reader = threading.Thread(target=self._take, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _take(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                found = self._record.search(line)
                if found is None:
                    self.said.append(line.rstrip())
                else:
                    self.read.append((int(found[1]), int(found[2])))

    def kill(self) -> None:
        """Send SIGKILL: the client neither commits nor leaves the group."""
        self._process.kill()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)

    def leave(self) -> None:
        """Send SIGTERM: the client commits and leaves the group."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)


class Group:
    """A consumer group, whose state and members are read with DescribeGroups."""

    def __init__(self, servers: str, name: str) -> None:
        self._admin = confluent_admin.AdminClient({"bootstrap.servers": servers})
        self._name = name

    def shares(self) -> list[int]:
        """Return the number of partitions of each member, in ascending order.

        The list is empty if the group is not stable.
        """
        found = self._admin.describe_consumer_groups([self._name])[self._name].result(WAIT_S)
        if found.state.name != "STABLE":
            return []
        return sorted(len(row.assignment.topic_partitions) for row in found.members)

    def state(self) -> str:
        """Return Kafka's name of the group's state, such as STABLE or EMPTY."""
        found = self._admin.describe_consumer_groups([self._name])[self._name].result(WAIT_S)
        return str(found.state.name)
