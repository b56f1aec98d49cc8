"""Tests of ZooKeeper-based groups with very many members: bursts of changes, limit of members."""

from __future__ import annotations

import pytest
from transcripts.native_machine import NativeVerb

from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create
from broker_lite.native import events as ev
from broker_lite.native import machine
from broker_lite.native.machine import ENDED, MEMBER, MEMBERS_MAX, READ_DELAY_MAX_MS
from broker_lite.native.view import View

CHANGES = 200
EVERY_MS = 10


def test_member_reads_the_groups_znodes_rarely_during_a_burst_of_watch_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member reads the group at most ten times while others change it two hundred times."""
    looked: list[int] = []
    read = View.read

    def counted(view: View) -> None:
        looked.append(world.now_ms)
        read(view)

    world = NativeVerb({"name": "m", "topics": "t"})
    world.do("topic", {"name": "t", "partitions": "8"})
    world.do("connect", {})
    world.do("at", {"ms": "5000"})
    monkeypatch.setattr(View, "read", counted)
    for n in range(CHANGES):
        world.do("other", {"name": f"n{n:03}", "topics": "t"})
        world.do("at", {"ms": str(5000 + EVERY_MS * n)})
    world.do("at", {"ms": str(5000 + EVERY_MS * CHANGES + READ_DELAY_MAX_MS)})
    assert 3 <= len(looked) <= 10
    assert len(world.machine.view.members) == 1 + CHANGES


def test_zk_based_group_with_the_maximum_number_of_members_refuses_another_member() -> None:
    world = NativeVerb({"name": "m", "topics": "t"})
    world.do("topic", {"name": "t", "partitions": "1"})
    world.do("connect", {})
    world.do("lose", {})
    for n in range(MEMBERS_MAX):
        world.do("other", {"name": f"n{n:04}", "topics": "t"})
    said = world.do("connect", {})
    assert any("GROUP_MAX_SIZE_REACHED" in line for line in said), said
    assert world.machine.phase == ENDED
    assert len(world.service.peek_children(znodes.consumers_path("g"))) == MEMBERS_MAX


class Race(NativeVerb):
    """A member that registers just before (``is_first``) or just after another member."""

    is_first = True

    def _carry_out(self, effect: ev.Effect) -> None:
        me = znodes.consumer_path("g", self.name)
        registers = isinstance(effect, ev.Write) and any(
            isinstance(each, Create) and each.path == me for each in effect.operations
        )
        if registers and not self.is_first:
            self._other({"name": "other", "topics": "t"})
        super()._carry_out(effect)
        if registers and self.is_first:
            self._other({"name": "other", "topics": "t"})


@pytest.mark.parametrize("is_first", [True, False])
def test_first_of_two_members_that_register_together_becomes_the_last_allowed_member(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both members read the group before they register, so both find it below its limit."""
    monkeypatch.setattr(machine, "MEMBERS_MAX", 1)
    world = Race({"name": "m", "topics": "t"})
    world.is_first = is_first
    world.do("topic", {"name": "t", "partitions": "1"})
    said = world.do("connect", {})
    assert any("GROUP_MAX_SIZE_REACHED" in line for line in said) is not is_first, said
    assert world.machine.phase == (MEMBER if is_first else ENDED)
    assert not any("own t-0" in line for line in said) or is_first, said
    left = ["m", "other"] if is_first else ["other"]
    assert sorted(world.service.peek_children(znodes.consumers_path("g"))) == left
