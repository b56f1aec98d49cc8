"""Send lines from a thread at a set rate, and count the lines that brokers acknowledge."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from broker_lite.bus.blocking import Bus

_TICK_SECONDS = 0.1


class Shipper:
    """A thread that sends ``lines`` evenly over ``seconds``, and then ``own_count`` lines of the
    demo's own logs.

    ``own(n)`` returns the next of these lines, at most ``n``. ``acknowledged`` counts the records
    that all in-sync replicas have. ``error`` is the error that ended the thread early.
    """

    def __init__(
        self,
        bus: Bus,
        topic: str,
        lines: list[bytes],
        *,
        seconds: float,
        own: Callable[[int], list[bytes]],
        own_count: int,
    ) -> None:
        self.total = len(lines) + own_count
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._bus = bus
        self._topic = topic
        self._lines = lines
        self._seconds = seconds
        self._own = own
        self._own_left = own_count
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-shipper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the sending thread, even with lines left to send."""
        self._stopping.set()
        self._thread.join()

    @property
    def is_done(self) -> bool:
        """Return whether every line is acknowledged."""
        return self.acknowledged == self.total

    def _run(self) -> None:
        try:
            self._ship()
        except BaseException as error:
            self.error = error

    def _ship(self) -> None:
        started = time.monotonic()
        sent = 0
        with self._bus.producer(acks="all", compression="lz4") as producer:
            while (sent < len(self._lines) or self._own_left) and not self._stopping.is_set():
                share = min((time.monotonic() - started + _TICK_SECONDS) / self._seconds, 1.0)
                until = max(int(len(self._lines) * share), sent)
                own = self._own(self._own_left) if self._own_left else []
                self._own_left -= len(own)
                chunk = self._lines[sent:until] + own
                sent = until
                if chunk:
                    table = pa.table({"value": pa.array(chunk, pa.binary())})
                    producer.send_arrow(self._topic, table).result()
                    self.acknowledged += len(chunk)
                self._stopping.wait(_TICK_SECONDS)
