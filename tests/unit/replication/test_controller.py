"""The controller under any sequence of brokers coming and going and topics made and deleted."""

from __future__ import annotations

import random

import pytest

from broker_lite.errors import LogbusError
from broker_lite.model import NO_BROKER, BrokerView, Endpoint, ReplicaId, TopicView
from broker_lite.replication import controller_effects as fx
from broker_lite.replication import controller_events as ev
from broker_lite.replication.controller import Controller
from broker_lite.replication.election import has_live_leader


def brokers_at(rng: random.Random, epochs: list[int]) -> dict[int, BrokerView]:
    live = {}
    for broker_id in (1, 2, 3):
        if rng.random() < 0.3:
            epochs[broker_id] += 1
        if rng.random() < 0.7:
            directory = "X" if rng.random() < 0.1 else f"D{broker_id}"
            live[broker_id] = BrokerView(
                broker_id, Endpoint("h", 1), directory, epochs[broker_id] * 10 + broker_id
            )
    return live


@pytest.mark.parametrize("seed", range(30))
def test_any_sequence_of_events(seed: int) -> None:
    rng = random.Random(seed)
    epochs = [0, 1, 1, 1]
    machine = Controller()
    epoch = 1
    brokers = brokers_at(rng, epochs)
    held: dict[str, TopicView] = {}
    history: dict[tuple[str, int], int] = {}
    event: ev.ControllerEvent = ev.Loaded(epoch, brokers, {}, {})
    for token in range(150):
        left = machine.step(0, event)
        answers = 0
        while left:
            effect = left.pop(0)
            if isinstance(effect, fx.Answer):
                answers += 1
            elif not isinstance(effect, fx.Warn):
                left[:0] = machine.step(0, ev.Written(effect))
        requested = not isinstance(event, ev.Loaded | ev.BrokersChanged)
        assert answers == requested
        assert machine._held is not None
        held = machine._held.topics
        for topic in held.values():
            for view in topic.partitions:
                key = (topic.topic_id, view.partition)
                assert view.state.leader_epoch >= history.get(key, 0)
                history[key] = view.state.leader_epoch
                assert view.state.isr
                if view.state.leader == NO_BROKER:
                    assert not any(
                        r.broker_id in brokers
                        and brokers[r.broker_id].directory_id == r.directory_id
                        for r in view.state.isr
                    )
                else:
                    assert has_live_leader(view.state, brokers)
                    directory = brokers[view.state.leader].directory_id
                    assert ReplicaId(view.state.leader, directory) in view.state.isr
        name = f"t{rng.randint(0, 5)}"
        match rng.choice(("brokers", "create", "delete", "grow", "reelect")):
            case "brokers":
                brokers = brokers_at(rng, epochs)
                event = ev.BrokersChanged(brokers)
            case "create":
                event = ev.TopicCreationRequested(
                    token, name, f"{name}-{token}", rng.randint(1, 4), 1, None, {}
                )
            case "delete":
                event = ev.TopicDeletionRequested(token, name)
            case "grow":
                event = ev.PartitionsRequested(token, name, rng.randint(1, 6))
            case "reelect":
                epoch += 1
                machine = Controller()
                event = ev.Loaded(epoch, brokers, held, {})


def test_states_of_many_partitions_are_several_writes() -> None:
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


def test_an_error_carries_what_the_answer_needs() -> None:
    machine = Controller()
    machine.step(0, ev.Loaded(1, {}, {}, {}))
    [answer] = machine.step(0, ev.TopicDeletionRequested(5, "none"))
    assert isinstance(answer, fx.Answer)
    assert answer.token == 5 and isinstance(answer.error, LogbusError)
