"""Send records while a test changes the cluster, and record every failed send."""

from __future__ import annotations

import threading

from broker_lite.bus import Bus, connect
from broker_lite.errors import LogbusError
from support.patience import until

BATCH = 10


class Load:
    """A thread that sends values to ``topic`` in batches, with its own producer and acks=all.

    If ``copies`` names a topic, the load also writes the first value of each acknowledged batch to
    that topic, each in one transaction, with the transactional id ``name``. ``sent`` holds the
    acknowledged values, ``failures`` the errors that ended the load.
    """

    def __init__(
        self, servers: str, name: str, topic: str, *, copies: str = "", **login: str
    ) -> None:
        self.sent: list[bytes] = []
        self.failures: list[LogbusError] = []
        self._servers, self._name, self._topic = servers, name, topic
        self._copies, self._login = copies, login
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Load:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def goes_on(self, batches: int = 3) -> None:
        """Wait until ``batches`` more batches are acknowledged."""
        before = len(self.sent)
        until(lambda: self.failures or len(self.sent) >= before + batches * BATCH)
        assert not self.failures, self.failures

    def _run(self) -> None:
        try:
            with connect(self._servers, **self._login) as bus, bus.producer() as producer:
                while not self._stop.is_set():
                    number = len(self.sent)
                    values = [f"{self._name} {number + each}".encode() for each in range(BATCH)]
                    for future in [producer.send(self._topic, value=each) for each in values]:
                        future.result(60)
                    if self._copies:
                        with bus.transaction(self._name) as transaction:
                            transaction.send(self._copies, values[0])
                    self.sent += values
        except LogbusError as error:
            self.failures.append(error)


def read_values(bus: Bus, topic: str, count: int) -> list[bytes]:
    """Wait until a topic has at least ``count`` values; return all its values, sorted."""
    found: list[bytes] = []
    with bus.consumer(topic, start="earliest") as consumer:

        def poll() -> int:
            found.extend(record.value or b"" for record in consumer.poll(1.0))
            return len(found)

        until(poll, lambda total: total >= count)
        poll()
    return sorted(found)
