"""Copy a topic in transactions that also commit the group's offsets, while processes are killed.

    make chaos KILLS=0 CUTS=0 LOOP_KILLS=50

The copier is a Python process with the loop of the guide "Write exactly once". ``sink_chaos`` has
the writer, the reader, the checks, and the kills of an output leader and of all brokers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from faults.sink_chaos import Driver, SinkChaos

from broker_lite.local.broker import LocalBroker
from broker_lite.wire.calls.groups import KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION

COPIER = """
import sys
from broker_lite.bus import connect
from broker_lite.errors import LogbusError

with connect(sys.argv[1]) as bus:
    while True:
        try:
            with bus.transaction("copier"):
                pass
            with bus.consumer(
                "numbers", group="copier", start="earliest", auto_commit=False,
                group_instance_id="copier",
            ) as consumer:
                while True:
                    rows = consumer.poll(1.0)
                    if not rows:
                        continue
                    with bus.transaction("copier") as txn:
                        for row in rows:
                            txn.send("copies", row.value, partition=row.partition)
                        txn.send_offsets(consumer)
        except LogbusError as error:
            print(repr(error), flush=True)
"""


class Copier(Driver):
    """The process that copies in transactions; after a kill, ``start`` starts it again."""

    def __init__(self, servers: str, folder: Path) -> None:
        super().__init__(servers, folder)
        self.command = [sys.executable, "-P", "-c", COPIER, servers]


class LoopChaos(SinkChaos):
    """Kills the copying process, its group coordinator, and the brokers that ``sink_chaos`` kills
    too."""

    kinds: ClassVar = ("output leader", "coordinator", "group coordinator", "copier", "all brokers")
    copying: ClassVar = Copier

    def strike(self, kind: str) -> None:
        if kind != "copier":
            super().strike(kind)
            return
        self.driver.kill()
        self.driver.start()
        self.kills[kind] += 1

    def victim(self, kind: str) -> LocalBroker:
        key_types = {"coordinator": KEY_TYPE_TRANSACTION, "group coordinator": KEY_TYPE_GROUP}
        if kind in key_types:
            return self.coordinator("copier", key_types[kind])
        return super().victim(kind)
