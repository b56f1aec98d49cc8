"""A replica that another one leads: fetch, append, sync, and only then fetch again.

So its fetch offset is its flushed end. Where the leader says that the logs part it cuts by epoch,
never to the high watermark. Within one leader epoch the leader may have counted whatever was
fetched, so a damaged log is cut only between two epochs, while outside the ISR. Used by
``partition``, on its thread.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from broker_lite.model import NO_BROKER, LeaderAndIsr
from broker_lite.replication.effects import (
    AppendFetched,
    Effect,
    FetchFrom,
    HighWatermark,
    ProposeIsr,
    RaiseStart,
    StartAt,
    StopFetching,
    Sync,
    Truncate,
    in_order,
)
from broker_lite.replication.events import (
    FetchDiverged,
    Fetched,
    FetchedAppended,
    FetchOutOfRange,
    IsrRefused,
)
from broker_lite.replication.local_log import LocalLog


@dataclass(slots=True)
class Follower:
    """Another replica leads, or none does, or our leadership is an earlier process's."""

    state: LeaderAndIsr
    log: LocalLog
    may_have_fetched: bool
    """Whether the leader of this epoch may have counted a fetch of ours, or of a process before."""
    asked: FetchFrom | None = None
    """The fetch that is under way."""
    leader_high_watermark: int = 0
    leader_start: int = 0
    raised_start: int = 0
    """How far our own log's start was asked to follow the leader's."""
    proposal: LeaderAndIsr | None = None
    """The end of this epoch, without us in the ISR, that is being written."""
    paused: bool = False
    """Something failed: it is tried again at the next Tick."""

    def begin(self) -> list[Effect]:
        """The role was taken; what an earlier role asked of the disk may still be under way."""
        return [*(() if self.log.is_settled else (Sync(),)), *self.go_on()]

    def go_on(self) -> list[Effect]:
        """Whatever is due: leave the ISR, cut, or fetch."""
        log, leader = self.log, self.state.leader
        if leader in (NO_BROKER, log.replica.broker_id) or self.paused:
            return []
        effects: list[Effect] = []
        if log.damaged_from is not None and self.proposal is None:
            if not self.may_have_fetched and log.replica not in self.state.isr:
                return [self._truncate(log.damaged_from)] if log.writes_under_way == 0 else []
            if self.state.isr != (log.replica,):
                self.proposal = self._epoch_without_us()
                effects.append(ProposeIsr(self.proposal))
        if self.asked is None and log.is_settled:
            self.may_have_fetched = True
            self.asked = FetchFrom(
                leader, self.state.leader_epoch, log.log_end_offset, log.last_epoch
            )
            effects.append(self.asked)
        return effects

    def _epoch_without_us(self) -> LeaderAndIsr:
        """The same leader in a new epoch: what it counted of ours in this one counts no more."""
        isr = tuple(replica for replica in self.state.isr if replica != self.log.replica)
        return dataclasses.replace(self.state, leader_epoch=self.state.leader_epoch + 1, isr=isr)

    def _truncate(self, offset: int) -> Truncate:
        self.log.writes_under_way += 1
        return Truncate(offset)

    def stop(self) -> list[Effect]:
        """The role ends."""
        return [] if self.asked is None else [StopFetching()]

    # What the leader answered.

    def _is_stale(self, event: Fetched | FetchDiverged | FetchOutOfRange) -> bool:
        """Whether this answers no fetch that is under way; if it does, that one is over."""
        asked = self.asked
        if (
            asked is None
            or (event.leader_epoch, event.fetch_offset) != (asked.leader_epoch, asked.fetch_offset)
            or (
                isinstance(event, FetchDiverged)
                and event.last_fetched_epoch != asked.last_fetched_epoch
            )
        ):
            return True
        self.asked = None
        return False

    def fetched(self, event: Fetched) -> list[Effect]:
        """The leader's answer: append what came, or ask for what follows."""
        if self._is_stale(event):
            return []
        self.leader_high_watermark = max(self.leader_high_watermark, event.high_watermark)
        self.leader_start = max(self.leader_start, event.log_start_offset)
        if event.payload is None:
            return in_order([*self._committed(), *self.go_on()])
        self.log.writes_under_way += 1
        return [AppendFetched(event.payload, event.leader_epoch), Sync()]

    def diverged(self, event: FetchDiverged) -> list[Effect]:
        """Cut to where both logs are the same: the smaller of both ends of the epoch, or our own
        end of the one before (KIP-101, KIP-595)."""
        if self._is_stale(event):
            return []
        leader_end, own_end = event.leader_end, event.own_end
        offset = min(leader_end.offset, self.log.log_end_offset)
        if own_end is not None:
            offset = min(own_end.offset, self.log.log_end_offset)
            if own_end.leader_epoch == leader_end.leader_epoch:
                offset = min(offset, leader_end.offset)
        return [self._truncate(offset)]

    def out_of_range(self, event: FetchOutOfRange) -> list[Effect]:
        """Begin anew where the leader's log begins, if that is beyond our end; else wait."""
        if self._is_stale(event):
            return []
        if event.leader_log_start <= self.log.log_end_offset:
            self.paused = True
            return []
        self.log.writes_under_way += 1
        self.log.starting_at = event.leader_log_start
        return [StartAt(event.leader_log_start)]

    # What the disk answered.

    def appended(self, event: FetchedAppended) -> list[Effect]:
        # Where nothing of it was usable, asking again at once would be without end.
        self.paused = event.next_offset <= self.log.log_end_offset
        self.log.written(event.next_offset)
        return self.go_on()

    def failed(self) -> list[Effect]:
        """What was fetched could not be appended."""
        self.paused = True
        return []

    def synced(self) -> list[Effect]:
        return in_order([*self._committed(), *self.go_on()])

    def _committed(self) -> list[Effect]:
        """Take over what the leader knows to be committed, as far as it is on our disk."""
        log = self.log
        effects: list[Effect] = []
        offset = min(self.leader_high_watermark, log.flushed_end)
        if offset > log.high_watermark:
            log.high_watermark = offset
            effects.append(HighWatermark(offset))
        start = min(self.leader_start, log.high_watermark)
        if start > self.raised_start:
            self.raised_start = start
            effects.append(RaiseStart(start))
        return effects

    # The ISR.

    def take(self, state: LeaderAndIsr) -> list[Effect]:
        """The state znode as it is now, in this leader epoch."""
        if state.version > self.state.version:
            self.state, self.proposal, self.paused = state, None, False
        return self.go_on()

    def tick(self) -> list[Effect]:
        self.paused = False
        return self.go_on()

    def refused(self, event: IsrRefused) -> list[Effect]:
        if event.state == self.proposal:
            self.proposal = None
            self.paused = True
        return []
