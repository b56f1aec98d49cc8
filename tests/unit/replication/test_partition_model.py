"""A model check of replication: three replicas under random events.

The check must fail if any one rule of replication is removed. The simulator in tests/sim runs whole
brokers under random events. This check names a broken rule within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.replica_model import World

from broker_lite.model import OffsetAndEpoch
from broker_lite.replication import effects as fx
from broker_lite.replication import events as ev
from broker_lite.replication import isr, local_log, partition
from broker_lite.replication.follower import Follower
from broker_lite.replication.leader import Leader

STEPS = 3000
SEEDS_MAX = 20

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(12))
def test_model_check_finds_no_lost_committed_record(seed: int) -> None:
    world = World(seed)
    world.run(STEPS)
    world.heal()


def test_follower_with_records_below_the_leaders_log_start_stays_out_of_the_isr() -> None:
    world = World(96)
    world.run(STEPS)
    world.heal()


def test_model_check_of_replication_generates_every_event_type() -> None:
    seen: set[type] = set()
    for seed in range(4):
        world = World(seed)
        deliver = world.deliver

        def noting(node: Any, event: ev.Event, deliver: Any = deliver) -> None:
            seen.add(type(event))
            deliver(node, event)

        world.deliver = noting  # type: ignore[method-assign]
        world.run(STEPS)
        assert len(world.committed) > 0
    never = {ev.StorageFailed, ev.Closed}
    assert seen == set(ev.Event.__args__) - never


# Each function below removes one rule of replication, so that records are lost.


def unflushed_records_count_as_flushed(patch: pytest.MonkeyPatch) -> None:
    written = local_log.LocalLog.written

    def eager(self: local_log.LocalLog, next_offset: int) -> None:
        written(self, next_offset)
        self.flushed_end = self.log_end_offset

    patch.setattr(local_log.LocalLog, "written", eager)


def leader_counts_its_own_unflushed_records(patch: pytest.MonkeyPatch) -> None:
    advance = Leader.advance

    def advanced(self: Leader) -> list[fx.Effect]:
        flushed, self.log.flushed_end = self.log.flushed_end, self.log.log_end_offset
        effects = advance(self)
        self.log.flushed_end = flushed
        return effects

    patch.setattr(Leader, "advance", advanced)


def high_watermark_needs_any_two_replicas(patch: pytest.MonkeyPatch) -> None:
    def second(state: isr.IsrState, ends: Any, *, min_insync_replicas: int, current: int) -> int:
        known = sorted(ends.values(), reverse=True)
        return max(current, known[min(1, len(known) - 1)])

    patch.setattr(isr, "high_watermark", second)


def joining_replica_does_not_limit_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(isr.PendingExpandIsr, "maximal", property(lambda self: self.replicas))


def leaving_replica_does_not_limit_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        isr.PendingShrinkIsr,
        "maximal",
        property(lambda self: tuple(r for r in self.replicas if r not in self.leaving)),
    )


def refused_join_is_dropped_at_once(patch: pytest.MonkeyPatch) -> None:
    def refused(self: Leader, now_ms: int, event: ev.IsrRefused) -> list[fx.Effect]:
        if event.state == self.proposal:
            self.proposal, self.isr = None, isr.CommittedIsr(self.state.isr)
        return []

    patch.setattr(Leader, "refused", refused)


def follower_joins_the_isr_at_any_offset(patch: pytest.MonkeyPatch) -> None:
    expand = Leader._expand

    def eager(self: Leader, now_ms: int, event: ev.FollowerFetched) -> list[fx.Effect]:
        return expand(self, now_ms, event._replace(fetch_offset=1 << 40))

    patch.setattr(Leader, "_expand", eager)


def follower_joins_the_isr_below_the_epoch_start(patch: pytest.MonkeyPatch) -> None:
    expand = Leader._expand

    def eager(self: Leader, now_ms: int, event: ev.FollowerFetched) -> list[fx.Effect]:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        effects = expand(self, now_ms, event)
        self.epoch_start_offset = start
        return effects

    patch.setattr(Leader, "_expand", eager)


def follower_joins_the_isr_with_records_below_the_log_start(patch: pytest.MonkeyPatch) -> None:
    expand = Leader._expand

    def eager(self: Leader, now_ms: int, event: ev.FollowerFetched) -> list[fx.Effect]:
        return expand(self, now_ms, event._replace(follower_start=event.log_start_offset))

    patch.setattr(Leader, "_expand", eager)


def divergence_is_not_detected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_diverging", lambda self, event: None)


def divergence_is_detected_by_offset_alone(patch: pytest.MonkeyPatch) -> None:
    def diverging(self: Leader, event: ev.FollowerFetched) -> OffsetAndEpoch | None:
        end = self.log.log_end_offset
        return OffsetAndEpoch(end, self.state.leader_epoch) if event.fetch_offset > end else None

    patch.setattr(Leader, "_diverging", diverging)


def diverging_follower_raises_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    diverging = Leader._diverging

    def counted(self: Leader, event: ev.FollowerFetched) -> OffsetAndEpoch | None:
        self.follower_ends[event.replica] = event.fetch_offset
        return diverging(self, event)

    patch.setattr(Leader, "_diverging", counted)


def follower_truncates_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Plant a fault: a follower truncates to its high watermark, and may lose records (KIP-101)."""
    begin = Follower.begin

    def cut(self: Follower) -> list[fx.Effect]:
        log = self.log
        if log.high_watermark == log.log_end_offset or log.writes_in_flight:
            return begin(self)
        log.writes_in_flight += 1
        return [fx.Truncate(log.high_watermark)]

    patch.setattr(Follower, "begin", cut)


def fetch_of_any_leader_epoch_is_accepted(patch: pytest.MonkeyPatch) -> None:
    check = partition.Partition.check_leader
    patch.setattr(partition.Partition, "check_leader", lambda self, epoch=-1: check(self))


def fetch_response_of_any_leader_epoch_is_accepted(patch: pytest.MonkeyPatch) -> None:
    def is_stale(self: Follower, event: Any) -> bool:
        stale = self.in_flight is None or event.fetch_offset != self.in_flight.fetch_offset
        if not stale:
            self.in_flight = None
        return stale

    patch.setattr(Follower, "_is_stale", is_stale)


def follower_fetches_before_its_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        local_log.LocalLog, "is_settled", property(lambda self: self.writes_in_flight == 0)
    )


def leader_serves_before_its_epoch_began(patch: pytest.MonkeyPatch) -> None:
    begin = Leader.begin

    def hasty(self: Leader, now_ms: int) -> list[fx.Effect]:
        self.epoch_start_offset = 0
        return begin(self, now_ms)

    patch.setattr(Leader, "begin", hasty)


def broker_leads_in_the_epoch_of_its_earlier_process(patch: pytest.MonkeyPatch) -> None:
    def leads(state: Any, local: Any, broker_epochs: Any) -> bool:
        return state.leader == local.broker_id and local in state.isr

    patch.setattr(partition, "leads", leads)


def damaged_records_are_truncated_at_once(patch: pytest.MonkeyPatch) -> None:
    found = partition.Partition._corruption_found

    def cut(self: partition.Partition, now_ms: int, offset: int) -> list[fx.Effect]:
        if isinstance(self.role, Follower) and self.log.is_settled and self.role.in_flight:
            self.role.in_flight = None
            self.log.writes_in_flight += 1
            return [fx.StopFetching(), fx.Truncate(offset)]
        return found(self, now_ms, offset)

    patch.setattr(partition.Partition, "_corruption_found", cut)


def damaged_records_are_truncated_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    """Plant a fault: a replica truncates corrupt records in a leader epoch in which it may have
    fetched. A leader that counted these as replicated may add it to the ISR without them."""
    resume = Follower.resume

    def hasty(self: Follower) -> list[fx.Effect]:
        if self.log.damaged_from is not None and self.log.replica not in self.state.isr:
            self.may_have_fetched = False
        return resume(self)

    patch.setattr(Follower, "resume", hasty)


FIRST_SEED = {
    follower_joins_the_isr_with_records_below_the_log_start: 96,
    fetch_of_any_leader_epoch_is_accepted: 50,
    fetch_response_of_any_leader_epoch_is_accepted: 210,
}
"""The first seed that detects the fault, for faults that few seeds detect."""
PLANTS: tuple[Plant, ...] = (
    unflushed_records_count_as_flushed,
    leader_counts_its_own_unflushed_records,
    high_watermark_needs_any_two_replicas,
    joining_replica_does_not_limit_the_high_watermark,
    leaving_replica_does_not_limit_the_high_watermark,
    refused_join_is_dropped_at_once,
    follower_joins_the_isr_at_any_offset,
    follower_joins_the_isr_below_the_epoch_start,
    follower_joins_the_isr_with_records_below_the_log_start,
    divergence_is_not_detected,
    divergence_is_detected_by_offset_alone,
    diverging_follower_raises_the_high_watermark,
    follower_truncates_to_the_high_watermark,
    fetch_of_any_leader_epoch_is_accepted,
    fetch_response_of_any_leader_epoch_is_accepted,
    follower_fetches_before_its_flush,
    leader_serves_before_its_epoch_began,
    broker_leads_in_the_epoch_of_its_earlier_process,
    damaged_records_are_truncated_at_once,
    damaged_records_are_truncated_in_the_same_epoch,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_model_check_fails_if_any_one_rule_of_replication_is_removed(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    first = FIRST_SEED.get(plant, 0)
    for seed in range(first, first + SEEDS_MAX):
        world = World(seed)
        try:
            world.run(STEPS)
            world.heal()
        except AssertionError as broken:
            print(f"{plant.__name__}: seed {seed}: {broken}")
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not detect {plant.__name__}")
