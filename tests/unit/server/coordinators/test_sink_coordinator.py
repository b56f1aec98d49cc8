"""Tests of the coordinator of Spark's exactly-once sinks: the expiry of unused sinks."""

from __future__ import annotations

from support.transaction_world import OUT_0, TransactionCluster, run

from broker_lite.model import UNNUMBERED
from broker_lite.server.clock import Clock
from broker_lite.server.coordinators.sink_coordinator import HEAD_DAYS
from broker_lite.transactions.sink_events import EndBatch, JoinBatch
from broker_lite.transactions.sink_records import ProducerPair, head_key

DAY_MS = 86_400_000


class AheadClock(Clock):
    """A clock that is ``ahead_ms`` ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


def test_sink_expires_a_year_after_its_last_use_and_that_of_a_batch_write_after_the_timeout() -> (
    None
):
    """The sink of a batch write without transactionalId has the name of its only run."""

    async def body(cluster: TransactionCluster) -> None:
        coordinator, clock = cluster.at[1], AheadClock()
        sinks = coordinator.sinks
        sinks._clock = clock
        await cluster.init()
        for sink, name in (("query", "run"), ("write", "write")):
            join = JoinBatch(UNNUMBERED, sink, name, 0, 0, 0, 60_000, frozenset((OUT_0,)))
            found = await coordinator.ask_sink(sink, join)
            winners = frozenset((ProducerPair(found.producer_id, found.epoch),))
            await coordinator.ask_sink(sink, EndBatch(UNNUMBERED, sink, name, 0, True, winners, 1))
        await cluster.world.until(lambda: not sinks.open_slots(0))

        def expire() -> set[str]:
            """Expire unused sinks; return those that are left."""
            sinks.expire()
            return {sink for sink in ("query", "write") if sinks.is_sink(0, sink)}

        clock.ahead_ms = 800_000
        assert expire() == {"query", "write"}
        clock.ahead_ms = 900_001
        await cluster.world.until(lambda: expire() == {"query"})
        clock.ahead_ms = (HEAD_DAYS - 1) * DAY_MS
        assert expire() == {"query"}
        clock.ahead_ms = (HEAD_DAYS + 2) * DAY_MS
        assert expire() == set()
        state = coordinator._led[0].values
        keys = {head_key(sink) for sink in ("query", "write")}
        await cluster.world.until(lambda: not keys & state.keys())

    run(body)
