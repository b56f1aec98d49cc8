"""Tests of the controller's state machine: random events, and the writes that it decides on."""

from __future__ import annotations

import dataclasses
import random

import pytest

from broker_lite.errors import LogbusError
from broker_lite.model import (
    NO_BROKER,
    BrokerView,
    Endpoint,
    LeaderAndIsr,
    PartitionView,
    ReplicaId,
    StateChange,
    TopicPartition,
    TopicView,
)
from broker_lite.replication import controller_effects as fx
from broker_lite.replication import controller_events as ev
from broker_lite.replication.cluster_metadata import ClusterMetadata
from broker_lite.replication.controller import Controller
from broker_lite.replication.election import has_live_leader


class Random:
    """A controller with four brokers that gets random events; each is followed by a check of the
    invariants."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.epochs = [0, 1, 1, 1, 1]
        self.epoch = 1
        self.now_ms = 0
        self.token = 0
        self.machine = Controller(1000)
        self.brokers: dict[int, BrokerView] = {}
        self.suspects: dict[int, int] = {}
        self.history: dict[tuple[str, int], int] = {}
        self.renew_brokers()

    @property
    def metadata(self) -> ClusterMetadata:
        assert self.machine._metadata is not None
        return self.machine._metadata

    def renew_brokers(self) -> None:
        self.brokers = {}
        for number in (1, 2, 3, 4):
            if self.rng.random() < 0.3:
                self.epochs[number] += 1
            if self.rng.random() < 0.75:
                directory = "X" if self.rng.random() < 0.1 else f"D{number}"
                epoch = self.epochs[number] * 10 + number
                self.brokers[number] = BrokerView(
                    number,
                    Endpoint("h", 1),
                    directory,
                    epoch,
                    None,
                    {"metadata": 2},
                    self.rng.random() < 0.1,
                )

    def feed(self, event: ev.ControllerEvent) -> None:
        """Pass an event to the controller, and carry out the writes that it returns.

        Some writes are refused, as if a partition leader had written the same znode first.
        """
        left = self.machine.step(self.now_ms, event)
        answers = refusals = 0
        asked = isinstance(event, ev.Request)
        while left or refusals:
            if not left:
                event, refusals = ev.SuspectsChanged(self.suspects), 0
                left = self.machine.step(self.now_ms, event)
                continue
            effect = left.pop(0)
            if isinstance(effect, fx.Answer):
                answers += 1
                continue
            if isinstance(effect, fx.Warn):
                continue
            states = isinstance(effect, fx.WriteStates | fx.WriteAssignment)
            if states and self.rng.random() < 0.1 and (changed := self.leader_wrote()):
                self.machine.step(self.now_ms, ev.WriteRefused([changed]))
                refusals += 1
                if not isinstance(event, ev.Request | ev.ControllerTick):
                    event = ev.SuspectsChanged(self.suspects)
                left = self.machine.step(self.now_ms, event)
                continue
            left[:0] = self.machine.step(self.now_ms, ev.Written(effect))
        assert answers == asked, event
        self.check()

    def leader_wrote(self) -> StateChange | None:
        """Return a random ISR change that a live leader could write; None without a live leader."""
        keys = [k for k in self.metadata.partition_keys() if self.rng.random() < 0.3]
        for key in keys:
            view = self.metadata.partition(key)
            if not has_live_leader(view.state, self.brokers):
                continue
            others = [
                ReplicaId(number, self.brokers[number].directory_id)
                for number in view.replicas
                if number in self.brokers and self.rng.random() < 0.7
            ]
            leader = ReplicaId(view.state.leader, self.brokers[view.state.leader].directory_id)
            isr = tuple(dict.fromkeys([leader, *others]))
            state = dataclasses.replace(view.state, isr=isr, version=view.state.version + 1)
            return self.metadata.change(key, state)
        return None

    def check(self) -> None:
        metadata = self.metadata
        for topic in metadata.topics.values():
            for view in topic.partitions:
                state, key = view.state, (topic.topic_id, view.partition)
                assert state.leader_epoch >= self.history.get(key, 0)
                self.history[key] = state.leader_epoch
                assert state.isr and len(set(view.replicas)) == len(view.replicas)
                assert set(view.adding) | set(view.removing) <= set(view.replicas)
                assert view.target
                able = [
                    r
                    for r in state.isr
                    if r.broker_id in metadata.live
                    and metadata.live[r.broker_id].directory_id == r.directory_id
                    and r.broker_id in view.replicas
                ]
                if state.leader == NO_BROKER:
                    assert not able, view
                    continue
                assert has_live_leader(state, metadata.live)
                assert any(r.broker_id == state.leader for r in able)
                in_sync = {r.broker_id for r in able}
                moved = not view.adding and not view.removing
                assert moved or not set(view.target) <= in_sync, view

    def next_event(self) -> ev.ControllerEvent:
        rng = self.rng
        self.now_ms += rng.randint(0, 500)
        self.token += 1
        name = f"t{rng.randint(0, 4)}"
        tp = TopicPartition(name, rng.randint(0, 2))
        match rng.randint(0, 11):
            case 0 | 1:
                self.renew_brokers()
                return ev.BrokersChanged(self.brokers, self.suspects)
            case 2 | 3:
                chosen = [view for view in self.brokers.values() if rng.random() < 0.25]
                self.suspects = {view.broker_id: view.broker_epoch for view in chosen}
                return ev.SuspectsChanged(self.suspects)
            case 4:
                factor = rng.choice((None, 1, 2, 3))
                count = rng.randint(1, 4)
                unclean = {"unclean.leader.election.enable": "true"} if rng.random() < 0.2 else {}
                return ev.TopicCreationRequested(
                    self.token, name, f"{name}-{self.token}", count, factor, None, unclean
                )
            case 5:
                if rng.random() < 0.5:
                    return ev.TopicDeletionRequested(self.token, name)
                return ev.PartitionsRequested(self.token, name, rng.randint(1, 6))
            case 6:
                target = rng.sample((1, 2, 3, 4), rng.randint(1, 3))
                return ev.ReassignmentRequested(self.token, {tp: target})
            case 7:
                tps = rng.choice((None, [tp]))
                return ev.ElectionRequested(self.token, rng.random() < 0.3, tps)
            case 8:
                if rng.random() < 0.3:
                    return ev.ReassignmentRequested(self.token, {tp: None})
                return ev.RetirementRequested(self.token, rng.randint(1, 5))
            case 9:
                self.epoch += 1
                topics, features = self.metadata.topics, self.metadata.features
                known = self.metadata.known
                self.machine = Controller(1000)
                return ev.Loaded(self.epoch, self.brokers, topics, features, known, self.suspects)
            case _:
                changed = self.leader_wrote()
                return ev.ControllerTick() if changed is None else ev.StatesRead([changed])


@pytest.mark.parametrize("seed", range(60))
def test_random_events_keep_the_invariants_of_the_controller(seed: int) -> None:
    world = Random(seed)
    world.feed(ev.Loaded(1, world.brokers, {}, {}))
    for _ in range(300):
        world.feed(world.next_event())


def test_controller_splits_the_states_of_many_partitions_into_several_writes() -> None:
    machine = Controller()
    live = {
        1: BrokerView(1, Endpoint("h", 1), "A", 10),
        2: BrokerView(2, Endpoint("h", 1), "B", 11),
    }
    machine.step(0, ev.Loaded(1, live, {}, {}))
    for number in range(3):
        event = ev.TopicCreationRequested(number, f"t{number}", str(number), 1000, 1, None, {})
        [write] = machine.step(0, event)
        assert isinstance(write, fx.WriteTopic)
        machine.step(0, ev.Written(write))
    effects = machine.step(0, ev.BrokersChanged({1: live[1]}))
    writes = [effect for effect in effects if isinstance(effect, fx.WriteStates)]
    assert [len(write.changes) for write in writes] == [500, 500, 500]
    [warning] = [effect for effect in effects if isinstance(effect, fx.Warn)]
    assert "and 1495 more" in warning.text


@pytest.mark.parametrize("setting", ["two", "-1", ""])
def test_unreadable_topic_setting_does_not_stop_the_controller(setting: str) -> None:
    """If the setting stopped the controller, each next controller would stop at the same
    setting."""
    machine = Controller()
    live = {n: BrokerView(n, Endpoint("h", 1), f"D{n}", 10 + n) for n in (1, 2, 3)}
    isr = tuple(ReplicaId(n, f"D{n}") for n in live)
    state = LeaderAndIsr(1, 0, isr, 1, leader_broker_epoch=11)
    config = {"min.insync.replicas": setting, "unclean.leader.election.enable": "perhaps"}
    topic = TopicView("t", "id", (PartitionView(0, (1, 2, 3), state),), config)
    assert machine.step(0, ev.Loaded(1, live, {"t": topic}, {})) == []
    effects = machine.step(0, ev.SuspectsChanged({2: 12, 3: 13}))
    # Instead of the unreadable setting, the default min.insync.replicas of 2 applies. One suspected
    # replica therefore stays in the ISR.
    [write] = [effect for effect in effects if isinstance(effect, fx.WriteStates)]
    assert [replica.broker_id for replica in write.changes[0].state.isr] == [1, 2]


def test_controller_refusal_carries_the_token_of_the_refused_request() -> None:
    machine = Controller()
    machine.step(0, ev.Loaded(1, {}, {}, {}))
    [answer] = machine.step(0, ev.TopicDeletionRequested(5, "none"))
    assert isinstance(answer, fx.Answer)
    assert answer.token == 5 and isinstance(answer.error, LogbusError)
