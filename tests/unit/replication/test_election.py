"""Elections: who may lead, and what is said when nobody does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_lite.model import NO_BROKER, BrokerView, Endpoint, LeaderAndIsr, ReplicaId
from broker_lite.replication.election import elect, has_live_leader, leaderless_reason, leads

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
def test_only_a_live_disk_of_the_isr_is_elected(
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
        # The first of the assignment that can.
        for earlier in replicas[: 0 if stays else replicas.index(elected.leader)]:
            view = brokers.get(earlier)
            assert view is None or ReplicaId(earlier, view.directory_id) not in state.isr
    assert elect(elected, replicas, brokers, 7) is None


def test_an_earlier_process_of_the_broker_does_not_lead() -> None:
    state = LeaderAndIsr(1, 3, (ReplicaId(1, "A"),), 1, leader_broker_epoch=10)
    assert leads(state, ReplicaId(1, "A"), {10})
    assert not leads(state, ReplicaId(1, "A"), {11})
    assert not leads(state, ReplicaId(1, "B"), {10})
    assert not leads(state, ReplicaId(2, "A"), {10})


def test_reasons_name_the_broker_and_the_directory() -> None:
    state = LeaderAndIsr(NO_BROKER, 3, (ReplicaId(1, "A"),), 1)
    assert "broker 1 is down" in str(leaderless_reason(state, [1], {}))
    other = brokers_of({1: ("B", 5)})
    reason = str(leaderless_reason(state, [1], other))
    assert "data directory B" in reason and "in A" in reason
    # It lives, and will be elected in a moment.
    assert leaderless_reason(state, [1], brokers_of({1: ("A", 5)})) is None
