"""Tests of how a member of a ZooKeeper-based group claims partitions, and splits commits.

A member owns a partition while the partition's owner znode names this member. The member commits by
writing the partition's offset znode.
"""

from __future__ import annotations

from typing import Any

from transcripts.native_machine import NativeVerb

from broker_lite.errors import CoordinationUnavailableError, NotOwnerError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Check, Set, Znode, check_size
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native import events as ev
from broker_lite.native.events import ALL, Get
from broker_lite.native.ownership import Ownership
from broker_lite.native.pending_requests import BACKOFF_MAX_MS, PendingRequests
from broker_lite.native.view import WatchedTopic


def test_member_takes_a_partition_soon_if_the_owner_leaves_while_its_znode_is_read() -> None:
    """Regression: the watch event that the owner's znode was deleted may arrive before the
    response that contains the znode. The member then waited two seconds before it took the
    partition."""
    requests, tp = PendingRequests(), TopicPartition("t", 0)
    ownership = Ownership(requests, "g", "me")
    ownership.set_target({tp: (0, WatchedTopic("id", 1, 1))}, owned_by_others={tp})
    (look,) = requests.out
    assert isinstance(look, Get) and look.watch
    assert look.path == znodes.owner_path("g", *tp)
    ownership.owner_changed(look.path)
    requests.answered(look.tag, Znode(b"{}", 0, 1, 77))
    due_ms = ownership.next_ms()
    assert due_ms is not None and due_ms < BACKOFF_MAX_MS / 4


PARTITIONS = 200


class Large(NativeVerb):
    """A member that owns 200 partitions and commits so much metadata that ZooKeeper needs several
    writes.

    ``meanwhile`` names a fault that happens before the second write.
    """

    def __init__(self) -> None:
        super().__init__({"name": "m", "topics": "t"})
        self.meanwhile = ""
        self.multis: list[list[TopicPartition]] = []
        self.answers: list[tuple[int, ev.CommitAnswer]] = []
        """For each completed commit: the number of writes before its completion, and its result."""
        self.do("topic", {"name": "t", "partitions": str(PARTITIONS)})
        self.do("connect", {})
        held = self.machine.ownership.owned
        assert len(held) == PARTITIONS
        note = "\N{SNOWMAN}" * 1300
        self.rows = {tp: CommittedOffset(5, metadata=note) for tp in held}
        self.grants = {tp: row.grant for tp, row in held.items()}

    def commit(self) -> None:
        self._step(ev.StreamCommit(1, self.rows, self.grants))
        self._drain()

    def _carry_out(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.CommitAnswer):
            self.answers.append((len(self.multis), effect))
        operations = effect.operations if isinstance(effect, ev.Write) else ()
        if operations and all(isinstance(row, Set | Check) for row in operations):
            check_size(operations)
            paths = [row.path for row in operations if isinstance(row, Set)]
            tps = [TopicPartition("t", int(path.rpartition("/")[2])) for path in paths]
            if self.multis and self.meanwhile:
                verb, self.meanwhile = self.meanwhile, ""
                self.interfere(verb, tps)
            self.multis.append(tps)
        super()._carry_out(effect)

    def interfere(self, verb: str, tps: list[TopicPartition]) -> None:
        if verb == "reset":
            self._reset({"of": f"t-{tps[1].partition}", "offset": "77"})
        else:
            self.is_deaf = True

    def offsets(self) -> list[int]:
        found = []
        for partition in range(PARTITIONS):
            path = znodes.offset_path("g", "t", partition)
            znode = self.service.peek(path)
            assert znode is not None
            found.append(znodes.decode_offset(path, znode.data).offset)
        return found


def test_commit_that_is_split_into_several_writes_completes_after_the_last_write() -> None:
    world = Large()
    world.commit()
    assert len(world.multis) >= 3
    assert sum(map(len, world.multis)) == PARTITIONS
    assert world.answers == [(len(world.multis), ev.CommitAnswer(1, {}))]
    assert world.offsets() == [5] * PARTITIONS


def test_large_commit_fails_only_for_a_partition_with_a_concurrent_offset_reset() -> None:
    world = Large()
    world.meanwhile = "reset"
    world.commit()
    ((after, answer),) = world.answers
    assert after == len(world.multis)
    ((tp, error),) = answer.errors.items()
    assert isinstance(error, NotOwnerError)
    assert world.offsets() == [77 if n == tp.partition else 5 for n in range(PARTITIONS)]


def test_outcome_of_a_commit_is_unknown_if_the_response_of_a_zookeeper_write_is_lost() -> None:
    """A commit too large for one write to ZooKeeper is split into several writes. ZooKeeper applies
    the second, but its response is lost.

    After it has reconnected, the member reads the versions of the offsets' znodes again, so its
    next commit succeeds.
    """
    world = Large()
    world.meanwhile = "cut"
    world.commit()
    assert world.answers == []
    world.is_deaf = False
    world.do("suspend", {})
    ((_, answer),) = world.answers
    assert list(answer.errors) == [ALL]
    assert isinstance(answer.errors[ALL], CoordinationUnavailableError)
    written = sum(map(len, world.multis))
    assert len(world.multis) == 2
    assert world.offsets().count(5) == written < PARTITIONS
    world.do("connect", {})
    world.commit()
    assert world.answers[1][1] == ev.CommitAnswer(1, {})
    assert world.offsets() == [5] * PARTITIONS


class Partitions(dict[TopicPartition, Any]):
    """The partitions of a member. ``views`` counts the calls that list all of them."""

    views = 0

    def items(self) -> Any:
        self.views += 1
        return super().items()

    def values(self) -> Any:
        self.views += 1
        return super().values()


def test_member_handles_an_event_without_a_loop_over_all_its_partitions() -> None:
    """Regression: a member took 78 s to claim 6,000 partitions, 70 s of them in loops over all its
    partitions."""
    member = Large()
    ownership = member.machine.ownership
    owned, claims = Partitions(ownership.owned), Partitions()
    ownership.owned, ownership.claims = owned, claims
    for _ in range(5):
        member._step(ev.NativeTick())
    assert (owned.views, claims.views) == (0, 0)
