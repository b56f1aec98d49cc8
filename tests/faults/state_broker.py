"""A broker process with a state log on the topic "state"; lines on stdin control it. A *state log*
is a topic in which transaction coordinators keep the last value of each key.

``append KEY VALUE`` prints ``ok KEY VALUE`` or ``error KEY VALUE NAME``. ``dump`` prints ``state``
and the values of all keys as JSON. When the broker has loaded the state, it prints ``loaded
EPOCH``. The arguments are the broker id, the data folder and the address of ZooKeeper.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError
from broker_lite.server.broker import Broker
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.coordinators.state_log import StateLog
from broker_lite.transactions import keyed_state

keyed_state.COPY_BYTES_MIN = 20_000
"""Copies of the state begin at this small size, so that some kills happen during a copy."""


class StateBroker(Broker):
    """A broker with a state log. It prints the result of each append, and each load or loss of the
    state."""

    values: Mapping[bytes, bytes]
    state_log: StateLog

    def _compose(self, *args: Any) -> BrokerContext:
        parts = super()._compose(*args)
        self.state_log = StateLog(
            "state",
            self,
            replicas=parts.replicas,
            snapshot=lambda: parts.registry.snapshot,
            clock=parts.clock,
        )
        return parts

    def loaded(
        self, partition: int, epoch: int, values: Mapping[bytes, bytes], flags: Mapping[bytes, int]
    ) -> None:
        self.values = values
        say("loaded", epoch)

    def lost(self, partition: int) -> None:
        say("lost")

    def append(self, key: str, value: str) -> None:
        future = self.state_log.append(0, key.encode(), value.encode())

        def done(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                say("ok", key, value)
            else:
                assert isinstance(error, LogbusError)
                say("error", key, value, error.name)

        future.add_done_callback(done)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(broker_id: str, folder: str, zookeeper: str) -> None:
    config = BrokerConfig(
        broker_id=int(broker_id), log_dir=folder, zookeeper_connect=zookeeper, port=0
    )
    broker = StateBroker(config)
    say("ready", json.dumps(await broker.start()))
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode():
        verb, *words = line.split()
        if verb == "append":
            broker.append(*words)
        else:
            found = {key.decode(): value.decode() for key, value in broker.values.items()}
            say("state", json.dumps(found))
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
