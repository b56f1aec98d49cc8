"""Tests of commits by a group member whose generation changes during the commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.operation_player import OperationPlayer, coordinator_of

from broker_lite.client.consuming.changes import MemberIdentity
from broker_lite.client.membership.beginning import JoinSnapshot, commit
from broker_lite.errors import LogbusError, NotOwnerError, RebalanceInProgressError
from broker_lite.model import NULL_TOPIC_ID, CommittedOffset, TopicPartition
from broker_lite.wire.calls import groups

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ROWS = {T0: CommittedOffset(5), T1: CommittedOffset(6)}
OK, ILLEGAL_GENERATION, UNKNOWN_MEMBER, GATHERS, FENCED = 0, 22, 25, 27, 82


class ScriptedMember:
    """The group member that commits; ``held`` holds the partitions that it still owns."""

    def __init__(self) -> None:
        self.identity: MemberIdentity | None = MemberIdentity("me", 1, None)
        self.held = {T0, T1}
        self.grant = 1

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        return tp in self.held and grant == self.grant


class Play:
    """Runs ``commit`` against a coordinator that answers each request with the next error code.

    ``sent`` holds the generation and the partitions of each request. ``then`` is called after each
    response.
    """

    def __init__(
        self, member: ScriptedMember, codes: Sequence[int], then: Any = lambda: None
    ) -> None:
        self.sent: list[tuple[int, set[TopicPartition]]] = []
        self.player, left = OperationPlayer(), list(codes)

        def answer(step: Any) -> Any:
            call = step.exchange.call
            if isinstance(call, groups.FindCoordinatorRequest):
                return coordinator_of("g")
            code = left.pop(0) if len(left) > 1 else left[0]
            rows = [row.partition_index for row in call.topics[0].partitions]
            generation = call.generation_id_or_member_epoch
            self.sent.append((generation, {TopicPartition("t", row) for row in rows}))
            then()
            answers = tuple(groups.CommittedPartition(row, code) for row in rows)
            return groups.OffsetCommitResponse(0, (groups.CommittedTopic("t", answers),))

        operation = commit(
            self.player.cluster,
            "g",
            ROWS,
            grants=dict.fromkeys(ROWS, 1),
            member=member,
            deadline_ms=3000.0,
        )
        self.done: dict[TopicPartition, LogbusError | None] = self.player.run(operation, answer)


def test_member_commits_only_partitions_that_it_owns() -> None:
    member = ScriptedMember()
    member.held = {T1}
    play = Play(member, [OK])
    assert play.sent == [(1, {T1})]
    assert isinstance(play.done[T0], NotOwnerError) and play.done[T1] is None


def test_commit_during_a_rebalance_is_retried_in_the_next_generation() -> None:
    member = ScriptedMember()

    def next_generation() -> None:
        member.identity = MemberIdentity("me", 2, None)
        member.held = {T0}

    play = Play(member, [GATHERS, OK], next_generation)
    assert play.sent == [(1, {T0, T1}), (2, {T0})]
    assert play.done[T0] is None and isinstance(play.done[T1], NotOwnerError)
    play = Play(ScriptedMember(), [ILLEGAL_GENERATION, OK])
    assert [each[0] for each in play.sent] == [1, 1] and play.done == {T0: None, T1: None}


def test_commit_during_a_long_rebalance_times_out() -> None:
    play = Play(ScriptedMember(), [GATHERS])
    assert play.player.now_ms < 3000
    assert all(isinstance(error, RebalanceInProgressError) for error in play.done.values())


def test_commit_of_a_member_that_left_the_group_fails_with_not_owner() -> None:
    for code in (UNKNOWN_MEMBER, FENCED):
        play = Play(ScriptedMember(), [code])
        assert len(play.sent) == 1
        assert all(isinstance(error, NotOwnerError) for error in play.done.values())
    member = ScriptedMember()
    member.identity = None
    play = Play(member, [OK])
    assert play.sent == [] and all(isinstance(e, NotOwnerError) for e in play.done.values())


def test_offsets_of_an_earlier_assignment_are_not_committed_under_a_later_one() -> None:
    """Regression: a late commit of these offsets overwrote newer offsets that other members had
    committed."""
    member = ScriptedMember()
    member.grant = 2
    play = Play(member, [OK])
    assert play.sent == [] and all(isinstance(e, NotOwnerError) for e in play.done.values())


def test_member_recognises_partitions_that_were_created_after_its_group_began_to_read() -> None:
    snapshot = JoinSnapshot({"t": 3, "u": 2}, {"t": 1}, {"t": "a", "u": "b"})

    def added(topic: str, topic_id: str, count: int) -> list[bool]:
        return [snapshot.is_added(TopicPartition(topic, n), topic_id) for n in range(count)]

    assert added("t", "a", 4) == [False, False, True, True]
    assert added("u", "b", 3) == [False, False, True]
    assert added("new", "c", 1) == [True], "all records of a new topic are newer than the member"
    assert added("u", "d", 2) == [True, True], "all partitions of a recreated topic are new"
    assert added("u", NULL_TOPIC_ID, 2) == [False, False], "an unknown topic id is not compared"
