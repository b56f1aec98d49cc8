"""Fetches over real replicas, their logs in memory. What is on disks is in tests/cluster."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from replica_world import TOPIC_ID, Node, World, run

from broker_lite.config import BrokerConfig
from broker_lite.errors import FencedLeaderEpochError, LogbusError, NotLeaderError
from broker_lite.server.handlers import fetch
from broker_lite.server.parts import Parts
from broker_lite.server.trust import Trust
from broker_lite.wire import fetch as wire
from broker_lite.wire.api import parse_header


class Reader:
    """A client's end of its connection."""

    began_ms = 0
    peer = "a test"
    is_open = True

    def __init__(self, node: Node) -> None:
        self.answers: list[wire.FetchResponse] = []
        nothing = cast(Any, None)
        cluster = cast(Any, SimpleNamespace(snapshot=node.snapshot))
        self._parts = Parts(
            BrokerConfig(broker_id=node.id.broker_id), node.clock, cluster, node.manager,
            node.logs, node.disk, node.metrics, node.view.endpoint, nothing,
        )  # fmt: skip

    def fetch(self, offset: int, leader_epoch: int) -> None:
        wanted = wire.FetchPartition(0, offset, 1 << 20, current_leader_epoch=leader_epoch)
        request = wire.FetchRequest((wire.FetchTopic("", TOPIC_ID, (wanted,)),), 0)
        frame = memoryview(wire.encode_request(request, correlation_id=1, client_id="c"))[4:]
        fetch.handle(self._parts, parse_header(frame), frame, cast(Any, self))

    def answer(self, parts: Sequence[Any]) -> None:
        frame = b"".join(bytes(part) for part in parts)
        self.answers.append(wire.decode_response(memoryview(frame)[4:]))


@pytest.mark.parametrize(
    ("says_epoch", "expected"), [(True, FencedLeaderEpochError), (False, NotLeaderError)]
)
def test_what_a_deposed_leader_lost_is_not_out_of_range(
    says_epoch: bool, expected: type[LogbusError]
) -> None:
    """A read waited for a thread while another was elected, uncleanly, and this log was cut: only
    the new leader can tell what became of the offset, and ``start`` is not asked."""

    async def body(world: World) -> None:
        world.config = {"min.insync.replicas": "1"}
        old = await world.serves(1)
        old.cut_off()
        world.take_out(2)
        for value in (b"a", b"b", b"c"):
            await old.append([value])
        replica, waits = old.replica(), threading.Event()
        replica.trust = Trust(replica.log.log_end_offset)
        old.disk.read(lambda: waits.wait(10), lambda *_: None)
        reader = Reader(old)
        reader.fetch(2, replica.leader_epoch if says_epoch else -1)
        old.reached = True
        world.elect(2, isr=[2])
        await world.until(lambda: replica.log.log_end_offset == 0)
        waits.set()
        await world.until(lambda: bool(reader.answers))
        [row] = reader.answers[0].topics[0].partitions
        assert row.error_code == expected.code

    run(body, brokers=2)
