"""The parts that all benchmarks share: the input, its sizes, and the running servers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from peers.lines import Lines
from peers.row import is_floor
from peers.servers import HEAP, KafkaServers, LogbusServers, Servers
from peers.spark_session import SparkHost

QUICK_SHARE = 0.15
"""Share of a benchmark's records that a quick run uses."""


class Bench:
    """Keeps the servers of each system running as long as benchmarks need servers with the same
    settings."""

    def __init__(self, *, quick: bool = False, given: Path | None = None) -> None:
        self.quick = quick
        self.lines = Lines(given)
        self._up: dict[str, tuple[Any, Any]] = {}
        self._stack = contextlib.ExitStack()
        self._folder: str | None = None
        self._within: Callable[[], Mapping[str, list[int]]] = dict

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.stop_all()

    def size(self, full: int) -> int:
        """Return how many records to use: ``full``, or fewer in a quick run."""
        return max(1, int(full * QUICK_SHARE)) if self.quick else full

    def is_left_out(self, side: str) -> bool:
        """Return whether this run leaves a side out.

        Quick runs leave out floors (sides that do only the necessary work), because such runs are
        too short to measure a floor.
        """
        return self.quick and is_floor(side)

    def logbus(self, brokers: int = 1) -> LogbusServers:
        """Return logbus servers with this number of brokers; start them if necessary."""
        return self._servers("logbus", brokers, lambda: LogbusServers(brokers))

    def kafka(self, brokers: int = 1, *, tuned: bool = False, heap: str = HEAP) -> KafkaServers:
        """Return Kafka servers with these settings; start them if necessary."""
        key = (brokers, tuned, heap)
        return self._servers("kafka", key, lambda: KafkaServers(brokers, tuned=tuned, heap=heap))

    def both(self, brokers: int = 1, *, tuned: bool = False) -> list[Servers]:
        """Return the servers of both systems; ``tuned`` applies to Kafka."""
        return [self.logbus(brokers), self.kafka(brokers, tuned=tuned)]

    def spark(self, tuned: bool = True) -> SparkHost:
        """Return a Spark session for both sides (the compared systems). Start it if necessary."""
        return self._servers("spark", tuned, lambda: SparkHost(tuned))  # type: ignore[no-any-return]

    def folder(self) -> str:
        if self._folder is None:
            made = tempfile.TemporaryDirectory(prefix="logbus-bench-")
            self._folder = self._stack.enter_context(made)
        return self._folder

    def stop_all(self) -> None:
        with contextlib.ExitStack() as stack:  # ExitStack stops all servers even if one stop fails.
            for _, servers in self._up.values():
                stack.push(servers)
            self._up.clear()

    def pids(self) -> set[int]:
        """Return the pids of all processes of the running servers."""
        roles = [servers.processes() for _, servers in self._up.values()]
        return {pid for each in roles for pids in each.values() for pid in pids}

    @contextlib.contextmanager
    def counting(self, processes: Callable[[], Mapping[str, list[int]]]) -> Iterator[None]:
        """While the context is open, count server processes of the measured run as servers.

        Otherwise they would count as clients. ``processes`` returns their pids by role.
        """
        self._within = processes
        try:
            yield
        finally:
            self._within = dict

    def within(self) -> Mapping[str, list[int]]:
        """Return the living servers that the measured run itself started, by role."""
        return self._within()

    def _servers(self, peer: str, key: Any, make: Any) -> Any:
        before, servers = self._up.pop(peer, (None, None))
        if servers is None or before != key:
            if servers is not None:
                servers.__exit__(None, None, None)
            servers = make().__enter__()
        self._up[peer] = key, servers
        return servers
