"""Choose the brokers for the replicas of new partitions. Equal inputs give equal placements.

Leaders are assigned round robin. After each round, the distance in the ring of brokers from a
leader to its followers grows by one. The followers of one broker's partitions are thus spread over
all other brokers, which share its load when it dies. If every broker names its rack, a partition's
replicas use as many racks as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker_lite.errors import (
    BrokerNotAvailableError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)
from broker_lite.model import BrokerView

REPLICATION_FACTOR_MAX = 3
"""The replication factor of a topic that is created without one, if there are enough brokers."""


def default_factor(known_count: int) -> int:
    """Return the replication factor of a topic that is created without one, in a cluster of
    ``known_count`` brokers."""
    return max(1, min(REPLICATION_FACTOR_MAX, known_count))


def place(
    count: int, factor: int, live: Mapping[int, BrokerView], *, first: int
) -> list[tuple[int, ...]]:
    """Return the broker ids of the replicas of ``count`` partitions, preferred leaders first.

    ``first`` is the number of partitions placed before; the round robin continues after them.
    Raises BrokerNotAvailableError, InvalidReplicationFactorError."""
    brokers = [broker for broker in live.values() if not broker.draining]
    if not brokers:
        raise BrokerNotAvailableError("no broker is registered; try again")
    if factor > len(brokers):
        ids = ", ".join(str(broker.broker_id) for broker in sorted_brokers(brokers))
        count_text = f"1 broker is live (id {ids})"
        if len(brokers) > 1:
            count_text = f"{len(brokers)} brokers are live (ids {ids})"
        raise InvalidReplicationFactorError(
            f"replication_factor={factor}: only {count_text}; start more brokers, or give a "
            f"smaller replication factor"
        )
    not_full = [broker for broker in brokers if not broker.is_full]
    ring = _ring(not_full if factor <= len(not_full) else brokers)
    return [_row(ring, first + partition, factor) for partition in range(count)]


def sorted_brokers(brokers: Sequence[BrokerView]) -> list[BrokerView]:
    """Return the brokers sorted by id."""
    return sorted(brokers, key=lambda broker: broker.broker_id)


def _ring(brokers: Sequence[BrokerView]) -> list[tuple[int, str]]:
    """Return (broker, rack) pairs in an order that alternates between racks.

    If any broker names no rack, every broker counts as a rack of its own."""
    ordered = sorted_brokers(brokers)
    if any(broker.rack is None for broker in ordered):
        return [(broker.broker_id, str(broker.broker_id)) for broker in ordered]
    by_rack: dict[str, list[int]] = {}
    for broker in ordered:
        by_rack.setdefault(str(broker.rack), []).append(broker.broker_id)
    ring = []
    for turn in range(max(len(row) for row in by_rack.values())):
        for rack in sorted(by_rack):
            if turn < len(by_rack[rack]):
                ring.append((by_rack[rack][turn], rack))
    return ring


def _row(ring: list[tuple[int, str]], number: int, factor: int) -> tuple[int, ...]:
    """Return the broker ids of one partition's replicas, the preferred leader first.

    ``number`` is how many partitions were placed before this one."""
    size = len(ring)
    leader, rack = ring[number % size]
    chosen, racks = [leader], {rack}
    shift = number // size
    others = [ring[(number + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)]
    for new_racks_only in (True, False):
        for broker_id, rack in others:
            if len(chosen) == factor:
                break
            if broker_id not in chosen and not (new_racks_only and rack in racks):
                chosen.append(broker_id)
                racks.add(rack)
    return tuple(chosen)


def check_rows(rows: Sequence[Sequence[int]], live: Mapping[int, BrokerView]) -> None:
    """Raise InvalidReplicaAssignmentError for an invalid assignment.

    All partitions need the same number of replicas, on different live brokers."""
    for partition, row in enumerate(rows):
        if not row or len(set(row)) != len(row) or len(row) != len(rows[0]):
            raise InvalidReplicaAssignmentError(
                f"partition {partition} is assigned to brokers {list(row)}: give each partition "
                "the same number of brokers, at least one and none twice"
            )
        check_live(f"partition {partition}", row, live)


def check_live(what: str, brokers: Sequence[int], live: Mapping[int, BrokerView]) -> None:
    """Raise InvalidReplicaAssignmentError if one of the brokers is not live. ``what`` is the
    subject of the error's message."""
    for broker_id in brokers:
        if broker_id not in live:
            raise InvalidReplicaAssignmentError(
                f"{what} is assigned to broker {broker_id}, which is not alive; live brokers: "
                f"{sorted(live)}"
            )
