"""Tests of leader elections: which replicas may lead, and the reason if none may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.model import NO_BROKER, BrokerView, Endpoint, LeaderAndIsr, ReplicaId
from broker_lite.replication.election import (
    can_leave_isr,
    elect,
    elect_preferred,
    elect_unclean,
    has_live_leader,
    is_election_due,
    leaderless_reason,
    leads,
    withdrawn,
)

IDS = (1, 2, 3)


def brokers_of(rows: dict[int, tuple[str, int]]) -> dict[int, BrokerView]:
    return {
        broker_id: BrokerView(broker_id, Endpoint("h", 1), directory, epoch)
        for broker_id, (directory, epoch) in rows.items()
    }


def _living(state: LeaderAndIsr, brokers: dict[int, BrokerView]) -> tuple[ReplicaId, ...]:
    return tuple(
        r
        for r in state.isr
        if r.broker_id in brokers and brokers[r.broker_id].directory_id == r.directory_id
    )


live_brokers = st.dictionaries(
    st.sampled_from(IDS), st.tuples(st.sampled_from("AB"), st.integers(1, 3))
).map(brokers_of)
states = st.builds(
    LeaderAndIsr,
    st.sampled_from((*IDS, NO_BROKER)),
    st.integers(0, 9),
    st.lists(
        st.builds(ReplicaId, st.sampled_from(IDS), st.sampled_from("AB")),
        min_size=1,
        max_size=3,
        unique_by=lambda replica: replica.broker_id,
    ).map(tuple),
    st.just(1),
    st.just(4),
    st.integers(-1, 3),
)
assignments = st.permutations(IDS)


@given(states, assignments, live_brokers)
def test_only_a_live_replica_of_the_isr_is_elected(
    state: LeaderAndIsr, replicas: list[int], brokers: dict[int, BrokerView]
) -> None:
    elected = elect(state, replicas, brokers, 7)
    if elected is None:
        nobody = not _living(state, brokers)
        all_live = len(_living(state, brokers)) == len(state.isr)
        leads_on = has_live_leader(state, brokers) and all_live
        assert leads_on or (state.leader == NO_BROKER and nobody)
        return
    stays = has_live_leader(state, brokers)
    assert elected.leader_epoch == state.leader_epoch + (not stays)
    assert not stays or elected.leader == state.leader
    assert elected.controller_epoch == 7
    assert elected.version == state.version
    assert set(elected.isr) <= set(state.isr)
    if elected.leader == NO_BROKER:
        assert elected.isr == state.isr
        assert leaderless_reason(elected, replicas, brokers)
    else:
        leader = brokers[elected.leader]
        local = ReplicaId(leader.broker_id, leader.directory_id)
        assert leads(elected, local, {leader.broker_epoch})
        assert has_live_leader(elected, brokers)
        assert leaderless_reason(elected, replicas, brokers) is None
        assert elected.isr == _living(state, brokers)
        # No eligible broker precedes the new leader in the assignment.
        for earlier in replicas[: 0 if stays else replicas.index(elected.leader)]:
            view = brokers.get(earlier)
            assert view is None or ReplicaId(earlier, view.directory_id) not in state.isr
    assert elect(elected, replicas, brokers, 7) is None


@given(states, assignments, live_brokers)
def test_election_is_due_if_and_only_if_it_would_change_the_leader_epoch(
    state: LeaderAndIsr, replicas: list[int], brokers: dict[int, BrokerView]
) -> None:
    elected = elect(state, replicas, brokers, 7) or state
    assert is_election_due(state, brokers) == (elected.leader_epoch != state.leader_epoch)
    assert not is_election_due(elected, brokers)


def test_restarted_broker_leads_only_after_a_new_election() -> None:
    state = LeaderAndIsr(1, 3, (ReplicaId(1, "A"),), 1, leader_broker_epoch=10)
    assert leads(state, ReplicaId(1, "A"), {10})
    assert not leads(state, ReplicaId(1, "A"), {11})
    assert not leads(state, ReplicaId(1, "B"), {10})
    assert not leads(state, ReplicaId(2, "A"), {10})


def test_reason_for_a_missing_leader_names_the_broker_and_its_directory() -> None:
    state = LeaderAndIsr(NO_BROKER, 3, (ReplicaId(1, "A"),), 1)
    assert "broker 1 is down" in str(leaderless_reason(state, [1], {}))
    other = brokers_of({1: ("B", 5)})
    reason = str(leaderless_reason(state, [1], other))
    assert "data directory B" in reason and "in A" in reason
    # A live member will be elected, so there is no reason.
    assert leaderless_reason(state, [1], brokers_of({1: ("A", 5)})) is None


views = st.builds(
    lambda broker_id, directory, epoch, draining, is_full: BrokerView(
        broker_id, Endpoint("h", 1), directory, epoch, None, {}, draining, is_full
    ),
    st.sampled_from(IDS),
    st.sampled_from("AB"),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
registered_brokers = st.lists(views, max_size=3, unique_by=lambda view: view.broker_id).map(
    lambda rows: {view.broker_id: view for view in rows}
)
some_ids = st.sets(st.sampled_from(IDS))
assigned = st.permutations(IDS).flatmap(
    lambda ids: st.integers(1, 3).map(lambda size: list(ids)[:size])
)


@given(states, assigned, registered_brokers, some_ids, st.integers(1, 3))
def test_election_avoids_isr_members_that_are_draining_full_suspected_or_unassigned(
    state: LeaderAndIsr,
    replicas: list[int],
    registered: dict[int, BrokerView],
    suspicious: set[int],
    min_insync: int,
) -> None:
    live = {number: view for number, view in registered.items() if number not in suspicious}
    suspected = {number: view for number, view in registered.items() if number in suspicious}

    def decide(now: LeaderAndIsr) -> LeaderAndIsr | None:
        return elect(now, replicas, live, 7, suspected=suspected, min_insync=min_insync)

    after = decide(state) or state
    assert set(after.isr) <= set(state.isr) and after.isr
    assert decide(after) is None
    able = [r for r in _living(state, live) if r.broker_id in replicas]
    lasting = [r for r in able if not live[r.broker_id].draining]
    staying = [r for r in lasting if not live[r.broker_id].is_full]
    if not able:
        assert after.leader == NO_BROKER or after == state
        assert after.isr == state.isr
        return
    assert has_live_leader(after, live)
    assert after.leader in [r.broker_id for r in able]
    if staying:
        assert live[after.leader].takes_records
        assert set(staying) <= set(after.isr)
    elif lasting:
        assert not live[after.leader].draining
    # A broker with a full disk leaves the ISR only if enough members are left.
    if any(r in lasting and r not in after.isr for r in state.isr):
        assert len(after.isr) >= min_insync
    # A suspected broker leaves the ISR only if enough members are left.
    guessed = [r for r in _living(state, suspected) if r.broker_id in replicas]
    gone = [r for r in guessed if r not in after.isr]
    assert not gone or len(after.isr) >= min_insync
    # Only able and suspected members stay in the ISR.
    assert all(r in able or r in guessed for r in after.isr)


@pytest.mark.parametrize(
    ("full", "min_insync", "leader", "epoch", "isr"),
    [
        (1, 2, 2, 4, (2, 3)),
        (2, 2, 1, 3, (1, 3)),
        (1, 3, 2, 4, (1, 2, 3)),
        (2, 3, 1, 3, (1, 2, 3)),
    ],
)
def test_broker_with_a_full_disk_leaves_the_isr_unless_min_insync_needs_it(
    full: int, min_insync: int, leader: int, epoch: int, isr: tuple[int, ...]
) -> None:
    state = LeaderAndIsr(1, 3, tuple(ReplicaId(n, "A") for n in IDS), 1, leader_broker_epoch=1)
    live = brokers_of(dict.fromkeys(IDS, ("A", 1)))
    live[full] = BrokerView(full, Endpoint("h", 1), "A", 1, is_full=True)
    after = elect(state, IDS, live, 7, min_insync=min_insync) or state
    assert (after.leader, after.leader_epoch) == (leader, epoch)
    assert tuple(replica.broker_id for replica in after.isr) == isr


@given(states, assigned, registered_brokers)
def test_preferred_and_unclean_elections_name_a_live_leader_in_the_next_epoch(
    state: LeaderAndIsr, replicas: list[int], live: dict[int, BrokerView]
) -> None:
    preferred = elect_preferred(state, replicas[0], live, 7)
    if preferred is not None:
        assert has_live_leader(state, live) and has_live_leader(preferred, live)
        assert (preferred.leader, preferred.isr) == (replicas[0], state.isr)
        assert preferred.leader_epoch == state.leader_epoch + 1
    unclean = elect_unclean(state, replicas, live, live, 7)
    if unclean is not None:
        assert not _living(state, live)
        assert has_live_leader(unclean, live) and len(unclean.isr) == 1
        assert unclean.leader_epoch == state.leader_epoch + 1


@given(states, assignments, registered_brokers, st.sampled_from(IDS), st.sampled_from("AB"))
def test_corrupt_replica_leaves_the_isr_if_another_member_remains(
    state: LeaderAndIsr, replicas: list[int], live: dict[int, BrokerView], own: int, disk: str
) -> None:
    replica = ReplicaId(own, disk)
    after = withdrawn(state, replicas, replica, live)
    if after is None:
        alone = replica not in state.isr or len(state.isr) == 1
        assert alone or (state.leader == own and own in live)
        return
    assert after.isr == tuple(r for r in state.isr if r != replica)
    assert after.leader_epoch == state.leader_epoch + 1
    assert after.leader != own
    assert after.leader in (NO_BROKER, state.leader) or has_live_leader(after, live)


@given(states, assignments, registered_brokers, st.sampled_from(IDS))
def test_election_removes_a_draining_broker_from_the_isr_if_possible(
    state: LeaderAndIsr, replicas: list[int], live: dict[int, BrokerView], own: int
) -> None:
    """A draining broker stops once ``can_leave_isr`` is false for each of its partitions: it has
    left the ISR, or no other live member could remain. So it must be false after an election.
    """
    view = live.get(own)
    if view is None or not view.draining:
        return
    after = elect(state, replicas, live, 7) or state
    assert not can_leave_isr(after, view, live)
