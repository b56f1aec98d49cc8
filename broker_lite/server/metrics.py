"""Counters, gauges and histograms of one broker, served as text on /metrics if a port is set.

Counting is a dictionary update; gauges are read on request. Loop thread, except ``observe_ms``,
which disk threads call too, each with its own label. Without ``metrics.port`` no port is opened.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable

BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000)
"""Upper bounds of the histogram buckets in milliseconds; a further bucket counts longer
durations."""
PREFIX = "logbus_"
REQUEST_BYTES_MAX = 8192
"""Maximum bytes of an HTTP request head; scrapers send less."""


class Metrics:
    """The metrics of one broker. Names are words with underscores; ``label`` is a name's only
    label."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], int] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        self._histograms: dict[tuple[str, str], list[float]] = {}
        self._server: asyncio.Server | None = None

    def count(self, name: str, amount: int = 1, label: str = "") -> None:
        """Add ``amount`` to a counter."""
        key = (name, label)
        self._counters[key] = self._counters.get(key, 0) + amount

    def observe_ms(self, name: str, value: float, label: str = "") -> None:
        """Add one duration in milliseconds to a histogram."""
        row = self._histograms.get((name, label))
        if row is None:
            row = self._histograms[name, label] = [0.0] * (len(BUCKETS_MS) + 2)
        row[bisect.bisect_left(BUCKETS_MS, value)] += 1
        row[-1] += value

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Register a gauge; ``read`` is called when the metrics are requested."""
        self._gauges[name] = read

    def value(self, name: str, label: str = "") -> int:
        """Return a counter's value; 0 if it was never counted."""
        return self._counters.get((name, label), 0)

    def total(self, name: str) -> int:
        """Return the sum of a counter over all its labels."""
        return sum(amount for (known, _), amount in self._counters.items() if known == name)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        lines: list[str] = []
        typed: set[str] = set()
        for (name, label), amount in sorted(self._counters.items()):
            _head(lines, typed, f"{name}_total", "counter")
            lines.append(f"{PREFIX}{name}_total{_labels(label)} {amount}")
        for name, read in sorted(self._gauges.items()):
            _head(lines, typed, name, "gauge")
            lines.append(f"{PREFIX}{name} {read()}")
        for (name, label), row in sorted(self._histograms.copy().items()):
            _head(lines, typed, f"{name}_ms", "histogram")
            total = 0
            for bound, taken in zip((*BUCKETS_MS, "+Inf"), row[:-1]):
                total += int(taken)
                lines.append(f"{PREFIX}{name}_ms_bucket{_labels(label, str(bound))} {total}")
            lines.append(f"{PREFIX}{name}_ms_sum{_labels(label)} {row[-1]}")
            lines.append(f"{PREFIX}{name}_ms_count{_labels(label)} {total}")
        return "\n".join(lines) + "\n"

    async def serve(self, host: str, port: int) -> int:
        """Serve GET /metrics on ``port`` (0 selects a free port); return the bound port."""
        self._server = await asyncio.start_server(self._answer, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            found = head[:REQUEST_BYTES_MAX].startswith((b"GET /metrics ", b"GET /metrics?"))
            body = self.text().encode() if found else b"see /metrics\n"
            status = b"200 OK" if found else b"404 Not Found"
            writer.write(
                b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
            )
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


def _head(lines: list[str], typed: set[str], name: str, kind: str) -> None:
    if name not in typed:
        typed.add(name)
        lines.append(f"# TYPE {PREFIX}{name} {kind}")


def _labels(label: str, bound: str = "") -> str:
    pairs = []
    if label:
        pairs.append(f'kind="{label}"')
    if bound:
        pairs.append(f'le="{bound}"')
    return "{" + ",".join(pairs) + "}" if pairs else ""
