"""A model check of the replica: three replicas under random events, and each rule removed in turn.

The simulator does the same with the real shell. This check names a broken rule within a second.
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
def test_committed_records_are_never_lost(seed: int) -> None:
    world = World(seed)
    world.run(STEPS)
    world.heal()


def test_records_before_the_leaders_start_keep_a_follower_out_of_the_isr() -> None:
    """Regression: a follower with records from before the leader's start joined the ISR."""
    world = World(96)
    world.run(STEPS)
    world.heal()


def test_model_reaches_every_kind_of_event() -> None:
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
    never = {ev.LimitsChanged, ev.StorageFailed, ev.Closed}
    assert seen == set(ev.Event.__args__) - never


# -- removed rules --------------------------------------------------------------------------------


def unflushed_counts(patch: pytest.MonkeyPatch) -> None:
    written = local_log.LocalLog.written

    def eager(self: local_log.LocalLog, next_offset: int) -> None:
        written(self, next_offset)
        self.flushed_end = self.log_end_offset

    patch.setattr(local_log.LocalLog, "written", eager)


def own_end_does_not_count(patch: pytest.MonkeyPatch) -> None:
    advance = Leader.advance

    def advanced(self: Leader) -> list[fx.Effect]:
        flushed, self.log.flushed_end = self.log.flushed_end, self.log.log_end_offset
        effects = advance(self)
        self.log.flushed_end = flushed
        return effects

    patch.setattr(Leader, "advance", advanced)


def high_watermark_of_any_two(patch: pytest.MonkeyPatch) -> None:
    def second(state: isr.IsrState, ends: Any, *, min_insync_replicas: int, current: int) -> int:
        known = sorted(ends.values(), reverse=True)
        return max(current, known[min(1, len(known) - 1)])

    patch.setattr(isr, "high_watermark", second)


def joining_does_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(isr.PendingExpandIsr, "maximal", property(lambda self: self.replicas))


def leaving_does_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        isr.PendingShrinkIsr,
        "maximal",
        property(lambda self: tuple(r for r in self.replicas if r not in self.leaving)),
    )


def refused_join_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def refused(self: Leader, now_ms: int, event: ev.IsrRefused) -> list[fx.Effect]:
        if event.state == self.proposal:
            self.proposal, self.isr = None, isr.CommittedIsr(self.state.isr)
        return []

    patch.setattr(Leader, "refused", refused)


def joins_from_anywhere(patch: pytest.MonkeyPatch) -> None:
    expand = Leader._expand

    def eager(self: Leader, now_ms: int, event: ev.FollowerFetched) -> list[fx.Effect]:
        return expand(self, now_ms, event._replace(fetch_offset=1 << 40))

    patch.setattr(Leader, "_expand", eager)


def joins_before_the_epochs_start(patch: pytest.MonkeyPatch) -> None:
    expand = Leader._expand

    def eager(self: Leader, now_ms: int, event: ev.FollowerFetched) -> list[fx.Effect]:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        effects = expand(self, now_ms, event)
        self.epoch_start_offset = start
        return effects

    patch.setattr(Leader, "_expand", eager)


def joins_with_records_before_the_start(patch: pytest.MonkeyPatch) -> None:
    expand = Leader._expand

    def eager(self: Leader, now_ms: int, event: ev.FollowerFetched) -> list[fx.Effect]:
        return expand(self, now_ms, event._replace(follower_start=event.log_start_offset))

    patch.setattr(Leader, "_expand", eager)


def divergence_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_diverging", lambda self, event: None)


def divergence_by_offset_alone(patch: pytest.MonkeyPatch) -> None:
    def diverging(self: Leader, event: ev.FollowerFetched) -> OffsetAndEpoch | None:
        end = self.log.log_end_offset
        return OffsetAndEpoch(end, self.state.leader_epoch) if event.fetch_offset > end else None

    patch.setattr(Leader, "_diverging", diverging)


def diverging_counts(patch: pytest.MonkeyPatch) -> None:
    diverging = Leader._diverging

    def counted(self: Leader, event: ev.FollowerFetched) -> OffsetAndEpoch | None:
        self.follower_ends[event.replica] = event.fetch_offset
        return diverging(self, event)

    patch.setattr(Leader, "_diverging", counted)


def cut_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Truncate to the high watermark, as Kafka did before KIP-101."""
    begin = Follower.begin

    def cut(self: Follower) -> list[fx.Effect]:
        log = self.log
        if log.high_watermark == log.log_end_offset or log.writes_in_flight:
            return begin(self)
        log.writes_in_flight += 1
        return [fx.Truncate(log.high_watermark)]

    patch.setattr(Follower, "begin", cut)


def any_epoch_may_fetch(patch: pytest.MonkeyPatch) -> None:
    check = partition.Partition.check_leader
    patch.setattr(partition.Partition, "check_leader", lambda self, epoch=-1: check(self))


def answers_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    def is_stale(self: Follower, event: Any) -> bool:
        stale = self.in_flight is None or event.fetch_offset != self.in_flight.fetch_offset
        if not stale:
            self.in_flight = None
        return stale

    patch.setattr(Follower, "_is_stale", is_stale)


def fetches_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        local_log.LocalLog, "is_settled", property(lambda self: self.writes_in_flight == 0)
    )


def counts_before_the_epoch_began(patch: pytest.MonkeyPatch) -> None:
    begin = Leader.begin

    def hasty(self: Leader, now_ms: int) -> list[fx.Effect]:
        self.epoch_start_offset = 0
        return begin(self, now_ms)

    patch.setattr(Leader, "begin", hasty)


def leads_in_an_earlier_processes_epoch(patch: pytest.MonkeyPatch) -> None:
    def leads(state: Any, local: Any, broker_epochs: Any) -> bool:
        return state.leader == local.broker_id and local in state.isr

    patch.setattr(partition, "leads", leads)


def damage_is_cut_at_once(patch: pytest.MonkeyPatch) -> None:
    found = partition.Partition._corruption_found

    def cut(self: partition.Partition, now_ms: int, offset: int) -> list[fx.Effect]:
        if isinstance(self.role, Follower) and self.log.is_settled and self.role.in_flight:
            self.role.in_flight = None
            self.log.writes_in_flight += 1
            return [fx.StopFetching(), fx.Truncate(offset)]
        return found(self, now_ms, offset)

    patch.setattr(partition.Partition, "_corruption_found", cut)


def damage_is_cut_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    """Truncate outside the ISR in an epoch in which the leader may be about to add the replica."""
    resume = Follower.resume

    def hasty(self: Follower) -> list[fx.Effect]:
        if self.log.damaged_from is not None and self.log.replica not in self.state.isr:
            self.may_have_fetched = False
        return resume(self)

    patch.setattr(Follower, "resume", hasty)


FIRST_SEED = {
    joins_with_records_before_the_start: 96,
    any_epoch_may_fetch: 50,
    answers_of_any_epoch: 210,
}
"""The first seed that detects a rare fault; a few seeds detect the others."""
PLANTS: tuple[Plant, ...] = (
    unflushed_counts,
    own_end_does_not_count,
    high_watermark_of_any_two,
    joining_does_not_count,
    leaving_does_not_count,
    refused_join_is_forgotten,
    joins_from_anywhere,
    joins_before_the_epochs_start,
    joins_with_records_before_the_start,
    divergence_is_not_looked_for,
    divergence_by_offset_alone,
    diverging_counts,
    cut_to_the_high_watermark,
    any_epoch_may_fetch,
    answers_of_any_epoch,
    fetches_before_its_sync,
    counts_before_the_epoch_began,
    leads_in_an_earlier_processes_epoch,
    damage_is_cut_at_once,
    damage_is_cut_in_the_same_epoch,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_model_detects_each_removed_rule(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
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
    pytest.fail(f"{SEEDS_MAX} seeds did not notice {plant.__name__}")
