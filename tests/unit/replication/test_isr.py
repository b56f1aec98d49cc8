"""Tests of an ISR whose change is being written to ZooKeeper, and of the high watermark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_lite.model import ReplicaId
from broker_lite.replication.isr import (
    CommittedIsr,
    PendingExpandIsr,
    PendingShrinkIsr,
    high_watermark,
    is_enough,
)

A, B, C = ReplicaId(1, "A"), ReplicaId(2, "B"), ReplicaId(3, "C")


def test_maximal_isr_includes_replicas_whose_join_or_removal_is_not_yet_written() -> None:
    assert CommittedIsr((A, B)).maximal == (A, B)
    assert PendingExpandIsr((A, B), C).maximal == (A, B, C)
    assert PendingShrinkIsr((A, B, C), (C,)).maximal == (A, B, C)


def test_joining_replica_does_not_count_for_min_insync_replicas() -> None:
    assert not is_enough(PendingExpandIsr((A,), B), 2)
    assert is_enough(CommittedIsr((A, B)), 2)


def test_replicas_joining_or_leaving_the_isr_limit_the_high_watermark() -> None:
    ends = {A: 10, B: 8, C: 3}
    for isr, expected in (
        (CommittedIsr((A,)), 10),
        (CommittedIsr((A, B)), 8),
        (PendingExpandIsr((A, B), C), 3),
        (PendingShrinkIsr((A, B, C), (C,)), 3),
    ):
        assert high_watermark(isr, ends, min_insync_replicas=1, current=0) == expected


@given(
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 100)),
    st.lists(st.sampled_from([A, B, C]), min_size=1, unique=True),
    st.integers(0, 100),
    st.integers(1, 3),
)
def test_high_watermark_never_falls_and_never_passes_an_isr_member(
    ends: dict[ReplicaId, int], members: list[ReplicaId], current: int, least: int
) -> None:
    isr = CommittedIsr(tuple(members))
    offset = high_watermark(isr, ends, min_insync_replicas=least, current=current)
    assert offset >= current
    if offset > current:
        assert len(members) >= least
        assert all(offset <= ends[member] for member in members)
