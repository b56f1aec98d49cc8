"""Limit the rate at which a reassignment copies records, with Kafka's settings
``leader.replication.throttled.*`` and ``follower.replication.throttled.*``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker_lite.client.administration import replica_plans

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.administration.replica_plans import Ongoing, Plan
    from broker_lite.client.operations.cluster import ClusterView

LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"


def throttle(admin: Admin, view: ClusterView, ongoing: Ongoing, moves: Plan, rate: int) -> None:
    """Limit the copying of replicas for the plan ``moves``, at each live broker, to ``rate`` bytes
    per second.

    Replaces the lists of throttled replicas of the topics in the plan."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for tp, row in moves.items():
        partition = view.partition(tp)
        present = () if partition is None else replica_plans.target(partition, ongoing.get(tp))
        number = tp.partition
        leaders.setdefault(tp.topic, []).extend(f"{number}:{one}" for one in present)
        followers.setdefault(tp.topic, []).extend(
            f"{number}:{one}" for one in row if one not in present
        )
    for broker_id in view.brokers:
        admin.alter_broker_configs(broker_id, {f"{LEADER}.rate": rate, f"{FOLLOWER}.rate": rate})
    for topic, sources in leaders.items():
        settings = {LEADER: ",".join(sources), FOLLOWER: ",".join(followers[topic])}
        admin.alter_configs(topic, {f"{key}.replicas": text for key, text in settings.items()})


def unthrottle(admin: Admin, topics: Iterable[str]) -> None:
    """Remove the lists of throttled replicas from these topics, and the limits of live brokers.

    A dead broker keeps its limit, which has no effect without throttled replicas."""
    for topic in topics:
        admin.alter_configs(topic, {f"{LEADER}.replicas": None, f"{FOLLOWER}.replicas": None})
    for broker_id in admin.cluster().brokers:
        admin.alter_broker_configs(broker_id, {f"{LEADER}.rate": None, f"{FOLLOWER}.rate": None})
