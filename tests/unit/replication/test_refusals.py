"""Tests of the table of refused replication requests in the replication README.

The table lists each refusal with its error and its test.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker_lite import errors
from broker_lite.errors import LogbusError
from broker_lite.model import (
    BrokerView,
    Endpoint,
    LeaderAndIsr,
    OffsetAndEpoch,
    PartitionKey,
    PartitionView,
    ReplicaId,
    TopicPartition,
    TopicView,
)
from broker_lite.replication import controller_effects as fx
from broker_lite.replication import controller_events as ev
from broker_lite.replication.controller import Controller
from broker_lite.replication.effects import AnswerFollower, Reply
from broker_lite.replication.events import (
    ACKS_ALL,
    AppendRequested,
    EpochStarted,
    FollowerFetched,
    LeaderAndIsrChanged,
    ReplicaLimits,
)
from broker_lite.replication.partition import Partition

ROOT = Path(__file__).parents[3]
ROW = re.compile(
    r"\| (?P<what>.+) \| (?P<name>[A-Z_]+) \| (?P<code>\d+) \| `(?P<test>test_\w+)` \|"
)
LOCAL, OTHER = ReplicaId(1, "A"), ReplicaId(2, "B")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_each_refused_request_in_the_replication_readme_has_an_error_and_a_test() -> None:
    text = (ROOT / "broker_lite/replication/README.md").read_text("utf-8")
    section = text.partition("## What is refused\n")[2].partition("\n## ")[0]
    rows = [match for line in section.splitlines() if (match := ROW.fullmatch(line))]
    table = [line for line in section.splitlines() if line.startswith("| ")]
    # Every row except the header matches the pattern.
    assert len(rows) == len(table) - 1 > 20
    known = {(row.name, row.code) for row in errors.TABLE}
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for row in rows:
        assert (row["name"], int(row["code"])) in known, row["what"]
        assert f"def {row['test']}(" in sources, row["what"]


def leader(min_insync: int = 1) -> Partition:
    """Return the leader of epoch 5 with 20 flushed records, whose follower has not fetched yet."""
    partition = Partition(
        PartitionKey("T", 0), LOCAL, log_end_offset=20, flushed_end=20, high_watermark=0
    )
    state = LeaderAndIsr(1, 5, (LOCAL, OTHER), 1, leader_broker_epoch=9)
    partition.step(
        0, LeaderAndIsrChanged(state, frozenset((9,)), ReplicaLimits(min_insync), (1, 2))
    )
    return partition


def verdict(partition: Partition, replica: ReplicaId, epoch: int) -> LogbusError | None:
    end = OffsetAndEpoch(20, 4)
    effects = partition.step(0, FollowerFetched(replica, epoch, 20, 4, end, 0, 0))
    assert len(effects) == 1, "a refused fetch has no other effect"
    assert isinstance(effects[0], AnswerFollower)
    return effects[0].error


def test_refused_follower_fetches_have_distinct_errors() -> None:
    partition = leader()
    # Epoch 5 has not yet begun in the leader's log.
    assert isinstance(verdict(partition, OTHER, 5), errors.UnknownLeaderEpochError)
    partition.step(0, EpochStarted(5, 20, 20))
    assert isinstance(verdict(partition, OTHER, 4), errors.FencedLeaderEpochError)
    assert isinstance(verdict(partition, OTHER, 6), errors.UnknownLeaderEpochError)
    assert isinstance(verdict(partition, OTHER, -1), errors.FencedLeaderEpochError)
    stranger = verdict(partition, ReplicaId(3, "C"), 5)
    assert isinstance(stranger, errors.UnknownLeaderEpochError)
    assert "is not assigned to broker 3" in str(stranger)
    with pytest.raises(errors.OffsetNotAvailableError):
        partition.latest_offset()
    assert partition.high_watermark == 0
    state = LeaderAndIsr(2, 6, (LOCAL, OTHER), 1, leader_broker_epoch=8)
    partition.step(0, LeaderAndIsrChanged(state, frozenset((9,)), ReplicaLimits(), (1, 2)))
    assert isinstance(verdict(partition, OTHER, 6), errors.NotLeaderError)
    [reply] = partition.step(0, AppendRequested(7, ACKS_ALL, b""))
    assert isinstance(reply, Reply) and isinstance(reply.error, errors.NotLeaderError)


def test_isr_below_min_insync_has_different_errors_before_and_after_an_append() -> None:
    """The error before the append says for certain that no record is in the log.

    After the append, the records may be in the log.
    """
    partition = leader(min_insync=3)
    [reply] = partition.step(0, AppendRequested(7, ACKS_ALL, b""))
    assert isinstance(reply, Reply) and isinstance(reply.error, errors.NotEnoughReplicasError)
    assert reply.error.definite and not errors.NotEnoughReplicasAfterAppendError.definite


def cluster() -> Controller:
    """Return a controller of brokers 1 and 2, which live, and 3, which is down.

    Broker 4 was never registered. The preferred replica leads t-0. Partition t-1 has no leader,
    because its only replica is on broker 3.
    """
    live = {
        number: BrokerView(
            number, Endpoint("h", 1), f"D{number}", 10 + number, None, {"metadata": 2}
        )
        for number in (1, 2)
    }
    isr = {number: ReplicaId(number, f"D{number}") for number in (1, 2, 3)}
    led = LeaderAndIsr(1, 0, (isr[1], isr[2]), 1, leader_broker_epoch=11)
    nobody = LeaderAndIsr(-1, 1, (isr[3],), 1)
    partitions = (PartitionView(0, (1, 2), led), PartitionView(1, (3,), nobody))
    topics = {"t": TopicView("t", "id", partitions, {})}
    machine = Controller()
    machine.step(0, ev.Loaded(1, live, topics, {"metadata": 2}, (1, 2, 3)))
    return machine


@pytest.mark.parametrize(
    ("request_", "error", "cure"),
    [
        (ev.ReassignmentRequested(1, {T0: None}), errors.NoReassignmentInProgressError, ""),
        (
            ev.ReassignmentRequested(1, {T0: [1, 4]}),
            errors.InvalidReplicaAssignmentError,
            "live brokers: [1, 2]",
        ),
        (
            ev.ReassignmentRequested(1, {T0: [1]}, may_change_factor=False),
            errors.InvalidReplicationFactorError,
            "does not allow",
        ),
        (ev.ElectionRequested(1, False, [T0]), errors.ElectionNotNeededError, "preferred"),
        (ev.ElectionRequested(1, True, [T0]), errors.ElectionNotNeededError, "broker 1"),
        (
            ev.ElectionRequested(1, False, [T1]),
            errors.PreferredLeaderNotAvailableError,
            "is not alive",
        ),
        (
            ev.ElectionRequested(1, True, [T1]),
            errors.EligibleLeadersNotAvailableError,
            "start one",
        ),
        (
            ev.ElectionRequested(1, True, [TopicPartition("t", 2)]),
            errors.UnknownTopicOrPartitionError,
            "its partitions are 0 to 1",
        ),
        (ev.RetirementRequested(1, 1), errors.InvalidRequestError, "stop it first"),
        (ev.RetirementRequested(1, 3), errors.InvalidRequestError, "logbus topic reassign"),
        (ev.RetirementRequested(1, 4), errors.BrokerIdNotRegisteredError, "never"),
    ],
)
def test_refused_elections_reassignments_and_broker_removals_have_distinct_errors(
    request_: ev.Request, error: type[LogbusError], cure: str
) -> None:
    effects: Sequence[fx.ControllerEffect] = cluster().step(0, request_)
    [answer] = effects
    assert isinstance(answer, fx.Answer)
    found = [answer.error, *answer.outcomes.values()]
    [said] = [each for each in found if each is not None]
    assert type(said) is error and cure in str(said)
