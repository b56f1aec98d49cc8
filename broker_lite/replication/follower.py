"""The role of a follower: fetch from the leader, append, sync to disk, and only then fetch again.

The follower's fetch offset therefore tells the leader which records are on the follower's disk.
When the logs diverge, the follower truncates by leader epoch, never to the high watermark.

Within one leader epoch the leader may have counted every fetched record as replicated. A follower
with a corrupt log lacks some of these, so it first leaves the ISR in a new leader epoch, and
truncates before its first fetch in that epoch.

Only ``partition`` calls this module, on one thread."""

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
    """The role of a replica while this process does not lead the partition.

    Another broker, no broker, or an earlier process of this broker leads."""

    state: LeaderAndIsr
    log: LocalLog
    may_have_fetched: bool
    """Whether this broker, perhaps before it restarted, may have fetched in the leader epoch of
    ``state``.

    If so, the leader may have counted the fetched records as replicated."""
    in_flight: FetchFrom | None = None
    """The FetchFrom effect that has no answer yet, or None."""
    leader_high_watermark: int = 0
    leader_start: int = 0
    raised_start: int = 0
    """The highest ``offset`` of the RaiseStart effects so far. The records below it are deleted."""
    proposal: LeaderAndIsr | None = None
    """The state that would remove this replica from the ISR, while its write to ZooKeeper is in
    flight; else None."""
    paused: bool = False
    """Whether a fetch, an append or the write of ``proposal`` failed; the next Tick retries it."""

    def begin(self) -> list[Effect]:
        """Return the effects of becoming a follower.

        If disk operations of an earlier role are not complete, the first effect is a Sync (a
        flush), and the first fetch waits for its result."""
        return [*(() if self.log.is_settled else (Sync(),)), *self.resume()]

    def resume(self) -> list[Effect]:
        """Return the effects that are due next: a proposal to leave the ISR, a truncation, or a
        fetch.

        Return no effect while there is no leader to fetch from, or in the pause after a failure."""
        log, leader = self.log, self.state.leader
        if leader in (NO_BROKER, log.replica.broker_id) or self.paused:
            return []
        effects: list[Effect] = []
        if log.damaged_from is not None and self.proposal is None:
            if not self.may_have_fetched and log.replica not in self.state.isr:
                return [self._truncate(log.damaged_from)] if log.writes_in_flight == 0 else []
            if self.state.isr != (log.replica,):
                self.proposal = self._epoch_without_us()
                effects.append(ProposeIsr(self.proposal))
        if self.in_flight is None and log.is_settled:
            self.may_have_fetched = True
            self.in_flight = FetchFrom(
                leader, self.state.leader_epoch, log.log_end_offset, log.last_epoch
            )
            effects.append(self.in_flight)
        return effects

    def _epoch_without_us(self) -> LeaderAndIsr:
        """Return the partition's state in a new leader epoch, with this replica removed from the
        ISR.

        The leader epoch is new so that the leader no longer counts the replica's earlier
        fetches."""
        isr = tuple(replica for replica in self.state.isr if replica != self.log.replica)
        return dataclasses.replace(self.state, leader_epoch=self.state.leader_epoch + 1, isr=isr)

    def _truncate(self, offset: int) -> Truncate:
        self.log.writes_in_flight += 1
        return Truncate(offset)

    def stop(self) -> list[Effect]:
        """End the follower role. Cancel a fetch in flight."""
        return [] if self.in_flight is None else [StopFetching()]

    # Methods that handle the leader's answers.

    def _is_stale(self, event: Fetched | FetchDiverged | FetchOutOfRange) -> bool:
        """Return whether a leader's answer is outdated, that is, not for the fetch in flight.

        If the answer is for that fetch, ``in_flight`` becomes None."""
        in_flight = self.in_flight
        if (
            in_flight is None
            or (event.leader_epoch, event.fetch_offset)
            != (in_flight.leader_epoch, in_flight.fetch_offset)
            or (
                isinstance(event, FetchDiverged)
                and event.last_fetched_epoch != in_flight.last_fetched_epoch
            )
        ):
            return True
        self.in_flight = None
        return False

    def fetched(self, event: Fetched) -> list[Effect]:
        """Handle the leader's answer: append its batches, or fetch again if there are none."""
        if self._is_stale(event):
            return []
        self.leader_high_watermark = max(self.leader_high_watermark, event.high_watermark)
        self.leader_start = max(self.leader_start, event.log_start_offset)
        if event.payload is None:
            return in_order([*self._committed(), *self.resume()])
        self.log.writes_in_flight += 1
        return [AppendFetched(event.payload, event.leader_epoch), Sync()]

    def diverged(self, event: FetchDiverged) -> list[Effect]:
        """Truncate this log to the end of its common part with the leader's log (KIP-101, KIP-595).

        If both logs have the epoch that the leader names, truncate to the smaller of the epoch's
        two end offsets, otherwise to the end of this log's newest earlier epoch."""
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
        """Restart the log at the leader's log start offset if this log ends before that offset;
        else fetch again on the next Tick."""
        if self._is_stale(event):
            return []
        if event.leader_log_start <= self.log.log_end_offset:
            self.paused = True
            return []
        self.log.writes_in_flight += 1
        self.log.starting_at = event.leader_log_start
        return [StartAt(event.leader_log_start)]

    # Methods that handle the disk's answers.

    def appended(self, event: FetchedAppended) -> list[Effect]:
        """Handle a completed append of fetched batches: fetch again, perhaps after a pause."""
        # Pause if no batch was appended, because fetching again at once could loop for ever.
        self.paused = event.next_offset <= self.log.log_end_offset
        self.log.written(event.next_offset)
        return self.resume()

    def failed(self) -> list[Effect]:
        """Handle a failed append of fetched batches: pause until the next Tick, which fetches
        again."""
        self.paused = True
        return []

    def synced(self) -> list[Effect]:
        """Handle a completed Sync: raise the high watermark, up to the flushed end, and fetch
        again."""
        return in_order([*self._committed(), *self.resume()])

    def _committed(self) -> list[Effect]:
        """Return the effects that raise high watermark and log start offset to the leader's values.

        They rise at most to the flushed end of this log."""
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

    # Methods that handle partition states, ticks and proposals of ISR changes that ZooKeeper
    # refused.

    def adopt_state(self, state: LeaderAndIsr) -> list[Effect]:
        """Replace ``state`` by a newer one of the same leader epoch. Then call ``resume`` and
        return its effects."""
        if state.version > self.state.version:
            self.state, self.proposal, self.paused = state, None, False
        return self.resume()

    def tick(self) -> list[Effect]:
        """Resume after a pause: retry the operation that failed."""
        self.paused = False
        return self.resume()

    def refused(self, event: IsrRefused) -> list[Effect]:
        """Handle a refused proposal to leave the ISR: the next Tick proposes it again."""
        if event.state == self.proposal:
            self.proposal = None
            self.paused = True
        return []
