"""The parts that all benchmarks share: the input, its sizes, and the running servers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.lines import Lines
from peers.row import is_floor
from peers.servers import KafkaServers, LogbusServers
from peers.spark_session import SparkHost

QUICK_SHARE = 0.15
"""Factor by which a quick run reduces sizes."""


class Bench:
    """Keeps the servers of each system running as long as benchmarks need servers with the same
    settings."""

    def __init__(self, *, quick: bool = False, given: Path | None = None) -> None:
        self.quick = quick
        self.lines = Lines(given)
        self._up: dict[str, tuple[Any, Any]] = {}
        self._stack: dict[str, contextlib.ExitStack] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._within: Callable[[], Mapping[str, list[int]]] = dict

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_all()
        if self._folder is not None:
            self._folder.cleanup()

    def size(self, full: int) -> int:
        """Return a number of records: ``full``, or less in a quick run."""
        return max(1, int(full * QUICK_SHARE)) if self.quick else full

    def is_left_out(self, side: str) -> bool:
        """Return whether this run leaves a side out.

        Quick runs leave out floors (sides that do only the necessary work), because they are too
        short to measure one.
        """
        return self.quick and is_floor(side)

    def logbus(self, brokers: int = 1, config: Mapping[str, str] | None = None) -> LogbusServers:
        """Return logbus servers with these settings; start them if necessary."""
        key = (brokers, tuple(sorted((config or {}).items())))
        return self._servers("logbus", key, lambda: LogbusServers(brokers, config))

    def kafka(
        self,
        brokers: int = 1,
        *,
        tuned: bool = False,
        heap: str = "",
        config: Mapping[str, str] | None = None,
    ) -> KafkaServers:
        """Return Kafka servers with these settings; start them if necessary."""
        key = (brokers, tuned, heap, tuple(sorted((config or {}).items())))
        return self._servers(
            "kafka", key, lambda: KafkaServers(brokers, tuned=tuned, heap=heap, config=config)
        )

    def spark(self, tuned: bool = True) -> SparkHost:
        """Return a Spark session for both sides (the compared systems). Start it if necessary."""
        return self._servers("spark", tuned, lambda: SparkHost(tuned))  # type: ignore[no-any-return]

    def folder(self) -> str:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="logbus-bench-")
        return self._folder.name

    def stop_all(self) -> None:
        with contextlib.ExitStack() as stack:  # The stack stops all servers even if one stop fails.
            for peer in list(self._stack):
                stack.callback(self._stop, peer)

    def pids(self) -> set[int]:
        """Return the pids of all processes of the running servers."""
        return {
            pid
            for _, servers in self._up.values()
            for pids in servers.processes().values()
            for pid in pids
        }

    @contextlib.contextmanager
    def counting(self, processes: Callable[[], Mapping[str, list[int]]]) -> Iterator[None]:
        """While the context is open, count as servers the processes that the measured run itself
        starts.

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
        if peer in self._up and self._up[peer][0] == key:
            return self._up[peer][1]
        self._stop(peer)
        stack = contextlib.ExitStack()
        servers = stack.enter_context(make())
        self._stack[peer], self._up[peer] = stack, (key, servers)
        return servers

    def _stop(self, peer: str) -> None:
        self._up.pop(peer, None)
        if peer in self._stack:
            self._stack.pop(peer).close()
