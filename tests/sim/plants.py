"""Protocol rules, each with a switch that removes the rule from production code; for tests only.

A simulator that finds no fault may check too little. ``test_planted`` therefore proves that the
simulator detects the removal of each rule. Each function, a *plant*, replaces one function or
attribute of production code by a version without the rule. Its docstring states the wrong
behaviour.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from broker_lite.client.consuming.fetch_collector import FetchCollector
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.errors import LogbusError
from broker_lite.metadata import registration, znodes
from broker_lite.metadata.group_writer import GroupWriter
from broker_lite.metadata.store import Check, Create, Set
from broker_lite.model import NO_BROKER, BrokerView, LeaderAndIsr, ReplicaId
from broker_lite.replication import controller, election, isr, reassignment
from broker_lite.replication import partition as partition_module
from broker_lite.replication.cluster_metadata import ClusterMetadata
from broker_lite.replication.effects import (
    AnswerFollower,
    Effect,
    FetchFrom,
    Reply,
    Sync,
    Truncate,
)
from broker_lite.replication.events import (
    Appended,
    FetchDiverged,
    Fetched,
    FollowerFetched,
)
from broker_lite.replication.follower import Follower
from broker_lite.replication.isr import PendingExpandIsr, PendingShrinkIsr
from broker_lite.replication.leader import Leader
from broker_lite.replication.local_log import LocalLog
from broker_lite.replication.partition import Partition
from broker_lite.server.cluster import controller_writes, state_writes
from broker_lite.server.cluster.controller import ControllerShell
from broker_lite.server.handlers import fetch
from broker_lite.server.partitions.follower_fetch import FollowerFetches
from broker_lite.server.partitions.replica import Replica
from broker_lite.server.partitions.replica_fetcher import Fetchers
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.log import Log
from broker_lite.storage.producer_state import ProducerState


class Patch(Protocol):
    """The method of pytest's monkeypatch with which a test removes rules."""

    def setattr(self, target: Any, name: str, value: Any) -> None: ...


Plant = Callable[[Patch], None]
PLANTS: list[Plant] = []


def plant(function: Plant) -> Plant:
    PLANTS.append(function)
    return function


# The next functions remove rules about the high watermark.


@plant
def high_watermark_ignores_joining_replica(patch: Patch) -> None:
    """Plant a fault: the high watermark ignores a replica whose ISR expansion is in flight."""
    patch.setattr(PendingExpandIsr, "maximal", property(lambda self: self.replicas))


@plant
def high_watermark_ignores_leaving_replica(patch: Patch) -> None:
    """Plant a fault: the high watermark ignores a replica whose ISR shrink is in flight."""

    def staying(self: PendingShrinkIsr) -> tuple[ReplicaId, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.leaving)

    patch.setattr(PendingShrinkIsr, "maximal", property(staying))


@plant
def high_watermark_without_min_insync(patch: Patch) -> None:
    """Plant a fault: records are committed with fewer in-sync replicas than min.insync.replicas."""
    patch.setattr(isr, "is_enough", lambda state, least: True)


@plant
def high_watermark_counts_unflushed_leader_records(patch: Patch) -> None:
    """Plant a fault: the high watermark counts the leader's log end offset instead of its
    flushed end."""
    advance = Leader.advance

    def eager(self: Leader) -> list[Effect]:
        flushed, self.log.flushed_end = self.log.flushed_end, self.log.log_end_offset
        try:
            return advance(self)
        finally:
            self.log.flushed_end = flushed

    patch.setattr(Leader, "advance", eager)


@plant
def high_watermark_of_a_majority_of_the_isr(patch: Patch) -> None:
    """Plant a fault: a majority of the ISR commits a record, as in Raft.

    Any ISR member may be elected, also one without the record.
    """

    def high_watermark(
        state: Any, ends: Mapping[ReplicaId, int], *, min_insync_replicas: int, current: int
    ) -> int:
        known = sorted(ends.get(replica, -1) for replica in state.maximal)
        return max(current, known[(len(known) - 1) // 2])

    patch.setattr(isr, "high_watermark", high_watermark)


@plant
def leader_counts_fetches_of_any_epoch(patch: Patch) -> None:
    """Plant a fault: the leader counts a fetch of another leader epoch as the follower's
    progress."""

    def follower_fetched(self: Partition, now_ms: int, event: FollowerFetched) -> list[Effect]:
        try:
            self.check_leader()
        except LogbusError as error:
            return [AnswerFollower(error)]
        assert isinstance(self.role, Leader)
        return self.role.fetched(now_ms, event)

    patch.setattr(Partition, "_follower_fetched", follower_fetched)


@plant
def consumers_read_to_the_log_end(patch: Patch) -> None:
    """Plant a fault: consumers receive uncommitted records."""
    patch.setattr(Replica, "high_watermark", property(lambda self: self.role.log_end_offset))


@plant
def acks_all_is_acknowledged_after_leader_append(patch: Patch) -> None:
    """Plant a fault: acks=all is acknowledged when the leader alone has appended."""
    patch.setattr(Leader, "appended", lambda self, event: _reply(self, event))


def _reply(leader: Leader, event: Appended) -> list[Effect]:
    leader.appending.pop(event.token, None)
    return [Reply(event.token, event)]


# The next functions remove rules about the ISR and elections.


@plant
def replica_joins_isr_below_epoch_start(patch: Patch) -> None:
    """Plant a fault: a replica joins a new leader's ISR once it reaches the high watermark.

    If this is below the epoch's start offset, the replica may lack committed records.
    """
    patch.setattr(Leader, "_expand", _expanding(lambda self: self.log.high_watermark))


@plant
def replica_joins_isr_below_high_watermark(patch: Patch) -> None:
    """Plant a fault: a replica joins the ISR when it has reached the leader epoch's start, even
    below the high watermark.
    """
    patch.setattr(Leader, "_expand", _expanding(lambda self: self.epoch_start_offset or 0))


def _expanding(least: Callable[[Leader], int]) -> Callable[..., list[Effect]]:
    def expand(self: Leader, now_ms: int, event: FollowerFetched) -> list[Effect]:
        replica, members = event.replica, self.isr.maximal
        if (
            self.proposal is not None
            or self._was_refused(now_ms)
            or not event.may_join
            or any(member.broker_id == replica.broker_id for member in members)
            or event.fetch_offset < least(self)
        ):
            return []
        self.isr = PendingExpandIsr(self.state.isr, replica)
        return self._propose(dataclasses.replace(self.state, isr=(*self.state.isr, replica)))

    return expand


@plant
def leader_is_elected_outside_the_isr(patch: Patch) -> None:
    """Plant a fault: if the leader fails, the controller elects any live replica."""
    elect = election.elect

    def careless(
        state: LeaderAndIsr,
        replicas: Sequence[int],
        live: Mapping[int, BrokerView],
        epoch: int,
        *more: Any,
        **others: Any,
    ) -> LeaderAndIsr | None:
        found = [live[broker_id] for broker_id in replicas if broker_id in live]
        if election.has_live_leader(state, live) or not found:
            return elect(state, replicas, live, epoch, *more, **others)
        isr = tuple(ReplicaId(broker.broker_id, broker.directory_id) for broker in found)
        return election.led_by(state, found[0], isr, epoch)

    _elections(patch, careless)


@plant
def isr_is_emptied_when_its_last_member_fails(patch: Patch) -> None:
    """Plant a fault: the ISR becomes empty when its last member fails.

    ZooKeeper then names no replica that has all committed records.
    """
    elect = election.elect

    def emptying(state: LeaderAndIsr, *values: Any, **others: Any) -> LeaderAndIsr | None:
        elected = elect(state, *values, **others)
        if elected is not None and elected.leader == NO_BROKER:
            return dataclasses.replace(elected, isr=())
        return elected

    _elections(patch, emptying)


@plant
def returning_leader_keeps_its_epoch(patch: Patch) -> None:
    """Plant a fault: a leader that is elected again keeps its leader epoch."""
    elect = election.elect

    def lazy(state: LeaderAndIsr, *values: Any, **others: Any) -> LeaderAndIsr | None:
        elected = elect(state, *values, **others)
        if elected is None or elected.leader != state.leader:
            return elected
        return dataclasses.replace(elected, leader_epoch=state.leader_epoch)

    _elections(patch, lazy)


def _elections(patch: Patch, elect: Any) -> None:
    for module in (controller, reassignment):
        patch.setattr(module, "elect", elect)


@plant
def restarted_broker_leads_in_its_old_epoch(patch: Patch) -> None:
    """Plant a fault: a restarted broker leads in the leader epoch of its former process."""

    def leads(state: LeaderAndIsr, local: ReplicaId, broker_epochs: Collection[int]) -> bool:
        return state.leader == local.broker_id and local in state.isr

    patch.setattr(partition_module, "leads", leads)


@plant
def any_directory_leads(patch: Patch) -> None:
    """Plant a fault: a broker stays in the ISR and leads although it has a new data directory."""

    def leads(state: LeaderAndIsr, local: ReplicaId, broker_epochs: Collection[int]) -> bool:
        return state.leader == local.broker_id and state.leader_broker_epoch in broker_epochs

    def has_live_leader(state: LeaderAndIsr, brokers: Mapping[int, BrokerView]) -> bool:
        broker = brokers.get(state.leader)
        return broker is not None and broker.broker_epoch == state.leader_broker_epoch

    patch.setattr(partition_module, "leads", leads)
    patch.setattr(election, "has_live_leader", has_live_leader)
    patch.setattr(election, "_is_live", lambda replica, brokers: replica.broker_id in brokers)


@plant
def rolled_back_directory_registers(patch: Patch) -> None:
    """Plant a fault: a data directory restored from an old copy is accepted as up to date."""

    async def check_disk(self: registration.Registrar) -> Any:
        ours = self._registration
        path = znodes.disk_path(ours.directory_id)
        data = znodes.encode_disk(znodes.DiskZnode(ours.broker_id, ours.start_counter))
        found = await self._store.get(path)
        return Create(path, data) if found is None else Set(path, data, found.version)

    patch.setattr(registration.Registrar, "check_disk", check_disk)


# The next functions remove rules that followers obey.


@plant
def follower_truncates_to_the_high_watermark(patch: Patch) -> None:
    """Plant a fault: a follower truncates its log to its own high watermark (KIP-101)."""
    begin = Follower.begin

    def cutting(self: Follower) -> list[Effect]:
        effects = begin(self)
        log = self.log
        if log.writes_in_flight == 0 and log.high_watermark < log.log_end_offset:
            self.in_flight = None
            kept = [effect for effect in effects if not isinstance(effect, FetchFrom)]
            log.writes_in_flight += 1
            return [Truncate(log.high_watermark), *kept]
        return effects

    patch.setattr(Follower, "begin", cutting)


@plant
def leader_does_not_check_divergence(patch: Patch) -> None:
    """Plant a fault: the leader does not check whether a fetching follower's log has diverged."""
    patch.setattr(Leader, "_diverging", lambda self, event: None)


@plant
def diverged_follower_deletes_its_log(patch: Patch) -> None:
    """Plant a fault: a follower in the ISR whose log has diverged deletes its whole log."""

    def diverged(self: Follower, event: FetchDiverged) -> list[Effect]:
        return [] if self._is_stale(event) else [self._truncate(0)]

    patch.setattr(Follower, "diverged", diverged)


@plant
def follower_fetches_before_its_flush(patch: Patch) -> None:
    """Plant a fault: a follower fetches, and so acknowledges, before it has flushed."""
    fetched, tick = Follower.fetched, Follower.tick

    def unflushed(self: Follower, event: Fetched) -> list[Effect]:
        return [effect for effect in fetched(self, event) if not isinstance(effect, Sync)]

    patch.setattr(LocalLog, "is_settled", property(lambda self: self.writes_in_flight == 0))
    patch.setattr(Follower, "fetched", unflushed)
    patch.setattr(Follower, "tick", lambda self: [Sync(), *tick(self)])


@plant
def follower_appends_stale_responses(patch: Patch) -> None:
    """Plant a fault: a follower appends the response to a fetch of an earlier leader epoch."""

    def take(self: Follower, event: Any) -> bool:
        self.in_flight = None
        return False

    patch.setattr(Follower, "_is_stale", take)
    patch.setattr(Fetchers, "is_current", lambda self, key, row: key in self._rows)


@plant
def fetches_of_old_registrations_count(patch: Patch) -> None:
    """Plant a fault: a broker's fetch from an earlier registration counts for its present disk.

    KIP-903 forbids this."""

    careful = FollowerFetches.follower

    def follower(self: FollowerFetches, broker_id: int, broker_epoch: int) -> BrokerView:
        known = self.cluster.snapshot.brokers.get(broker_id)
        return known if known is not None else careful(self, broker_id, broker_epoch)

    patch.setattr(FollowerFetches, "follower", follower)


# The next functions remove rules about disks and producer state.


@plant
def flush_does_nothing(patch: Patch) -> None:
    """Plant a fault: a flush leaves records in the page cache."""

    def flush(self: Log) -> int:
        self.flushed_end = self.log_end_offset
        return self.flushed_end

    patch.setattr(Log, "flush", flush)


@plant
def truncation_keeps_leader_epochs(patch: Patch) -> None:
    """Plant a fault: a truncated log keeps the leader epochs of the truncated records."""
    patch.setattr(LeaderEpochs, "truncate_from_end", lambda self, offset: False)


@plant
def every_epoch_ends_at_the_log_end(patch: Patch) -> None:
    """Plant a fault: a leader answers its log end offset as the end of any earlier leader epoch."""
    end_offset_for = LeaderEpochs.end_offset_for

    def end(self: LeaderEpochs, epoch: int, log_end_offset: int) -> Any:
        found = end_offset_for(self, epoch, log_end_offset)
        return None if found is None else found._replace(offset=log_end_offset)

    patch.setattr(LeaderEpochs, "end_offset_for", end)


@plant
def duplicates_are_appended(patch: Patch) -> None:
    """Plant a fault: sequence numbers are not checked."""
    patch.setattr(ProducerState, "check", lambda self, header, **options: None)


@plant
def followers_keep_no_producer_state(patch: Patch) -> None:
    """Plant a fault: followers record no producer state, so a new leader has none."""
    append = Log.append_as_follower

    def forgetting(self: Log, buffer: memoryview, leader_epoch: int, now_ms: int) -> int:
        known = self.producers
        self.producers = ProducerState(known.next_offset)
        try:
            return append(self, buffer, leader_epoch, now_ms)
        finally:
            known.next_offset = self.producers.next_offset
            known.forgot = True
            self.producers = known

    patch.setattr(Log, "append_as_follower", forgetting)


@plant
def truncation_keeps_producer_state(patch: Patch) -> None:
    """Plant a fault: a truncated log keeps the producer state of the truncated batches."""
    patch.setattr(Log, "rebuild_producers", lambda self, now_ms: None)


# The next functions remove rules about writes to ZooKeeper.


@plant
def deposed_controller_is_not_fenced(patch: Patch) -> None:
    """Plant a fault: ZooKeeper applies the writes of a deposed controller."""
    begin = ControllerShell._begin

    def unfenced(self: ControllerShell, *values: Any) -> None:
        begin(self, *values)
        assert self._fence is not None
        self._fence = Check(self._fence.path, -1)

    patch.setattr(ControllerShell, "_begin", unfenced)


@plant
def state_versions_are_not_compared(patch: Patch) -> None:
    """Plant a fault: a broker writes leader and ISR without comparing the znode's version."""
    set_state = controller_writes.set_state

    def blind(change: Any) -> Set:
        return set_state(change)._replace(version=-1)

    patch.setattr(controller_writes, "set_state", blind)
    patch.setattr(state_writes, "set_state", blind)


@plant
def lost_response_counts_as_applied(patch: Patch) -> None:
    """Plant a fault: a leader treats an ISR write whose response was lost as applied."""

    async def hopeful(store: Any, operations: Any, wait_connected: Any) -> Any:
        try:
            return await store.write(operations)
        except LogbusError:
            await wait_connected()
            return None

    patch.setattr(state_writes, "write_surely", hopeful)


@plant
def offset_commits_are_not_stored(patch: Patch) -> None:
    """Plant a fault: committed offsets of groups are acknowledged but not stored."""

    async def write(self: GroupWriter, parts: Any) -> None:
        """Acknowledge committed offsets without writing them; replaces the real method."""

    patch.setattr(GroupWriter, "_write", write)


# The next functions remove rules about reassignments and consumers' fetches.


@plant
def removed_replica_keeps_the_leader_epoch(patch: Patch) -> None:
    """Plant a fault: no leader epoch begins when a reassignment removes a replica. If the replica
    is added again, empty, the leader accepts late fetches of the removed replica.
    """
    led_by = election.led_by

    def same_epoch(state: LeaderAndIsr, *rest: Any) -> LeaderAndIsr:
        return dataclasses.replace(led_by(state, *rest), leader_epoch=state.leader_epoch)

    patch.setattr(reassignment, "led_by", same_epoch)


@plant
def reassignments_are_not_completed(patch: Patch) -> None:
    """Plant a fault: the controller does not complete a reassignment to an in-sync replica."""
    adopt = ClusterMetadata.adopt

    def silent(self: ClusterMetadata, *values: Any) -> list[Any]:
        adopt(self, *values)
        return []

    patch.setattr(ClusterMetadata, "adopt", silent)


@plant
def stray_logs_are_not_deleted(patch: Patch) -> None:
    """Plant a fault: a broker keeps logs of partitions that were reassigned or deleted while it was
    down."""
    patch.setattr(ReplicaManager, "_set_aside_strays", lambda self, snapshot: None)


@plant
def consumers_read_to_the_flushed_end(patch: Patch) -> None:
    """Plant a fault: a consumer's fetch returns records up to the leader's flushed end."""
    wanted = fetch._ConsumerFetch._range_of

    def more(self: Any, replica: Replica, *values: Any) -> Any:
        return wanted(self, replica, *values)._replace(end_offset=replica.role.flushed_end)

    patch.setattr(fetch._ConsumerFetch, "_range_of", more)


@plant
def consumers_ignore_a_new_leader(patch: Patch) -> None:
    """Plant a fault: a consumer does not refresh metadata after NOT_LEADER_OR_FOLLOWER."""
    patch.setattr(FetchEngine, "_renew", lambda self: None)


@plant
def records_from_before_a_seek_are_returned(patch: Patch) -> None:
    """Plant a fault: a consumer returns records that were fetched before a seek."""

    def fetched(self: FetchCollector) -> Any:
        fetched = self._engine.fetched
        return fetched.popleft() if fetched else None

    patch.setattr(FetchCollector, "_next_fetched", fetched)
