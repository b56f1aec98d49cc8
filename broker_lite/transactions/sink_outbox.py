"""``SinkOutbox``: the effects of one step of a ``SinkPartition``, and its appends in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker_lite.errors import LogbusError
from broker_lite.model import NO_PRODUCER
from broker_lite.transactions import sink_events as ev
from broker_lite.transactions.sink_records import SinkHead, SinkSlot
from broker_lite.transactions.transaction import Now

OnSettled = Callable[[LogbusError | None], None]
"""A callback for the outcome of an append: None once the record is committed, or the error with
which the log refused it."""


class SinkOutbox:
    """Where the sinks of a partition put the effects of the current step, and what to do when the
    log commits or refuses an append.

    ``now`` is the time of the current step."""

    def __init__(self) -> None:
        self.now = Now(0, 0)
        self.effects: list[ev.SinkEffect] = []
        self._settled: dict[int, OnSettled] = {}
        self._numbers = 0

    def begin(self, now: Now) -> None:
        """Begin a step, which has no effects yet."""
        self.now = now
        self.effects = []

    def append_head(self, sink: str, head: SinkHead | None, settled: OnSettled) -> None:
        """Append a new state of a sink to the log, or delete the sink if ``head`` is None."""
        self.effects.append(ev.PersistHead(self._expect(settled), sink, head))

    def append_slot(self, producer_id: int, slot: SinkSlot | None, settled: OnSettled) -> None:
        """Append a new state of a slot to the log, or delete the slot if ``slot`` is None."""
        self.effects.append(ev.PersistSlot(self._expect(settled), producer_id, slot))

    def settle(self, number: int, error: LogbusError | None) -> None:
        """Report the outcome of an append; ``error`` is None if its record is committed."""
        settled = self._settled.pop(number, None)
        if settled is not None:
            settled(error)

    def settle_all(self, error: LogbusError) -> None:
        """Report that all appends in flight failed."""
        settled, self._settled = self._settled, {}
        for outcome in settled.values():
            outcome(error)

    def reply(
        self,
        token: int,
        error: LogbusError | None = None,
        producer_id: int = NO_PRODUCER,
        epoch: int = -1,
    ) -> None:
        """Answer a request. The arguments are the fields of ``SinkResult``."""
        self.effects.append(ev.SinkReply(token, ev.SinkResult(error, producer_id, epoch)))

    def fail(self, events: Iterable[ev.SinkRequest], error: LogbusError) -> None:
        """Answer requests with ``error``."""
        for event in events:
            self.reply(event.token, error)

    def _expect(self, settled: OnSettled) -> int:
        self._numbers += 1
        self._settled[self._numbers] = settled
        return self._numbers
