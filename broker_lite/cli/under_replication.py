"""Find the topics that have fewer replicas than a new topic would get, because brokers were added
after their creation. ``up`` and ``doctor`` report them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker_lite.client.administration.health import fewer_replicas

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.operations.cluster import ClusterView

USUAL = 3
"""The replication factor of a new topic if default.replication.factor is 0 and the cluster has
enough brokers."""
NAMED_MAX = 10
"""Maximum number of topics that a warning about few replicas names."""


class FewReplicas(NamedTuple):
    """Topics with fewer replicas than a new topic gets. ``factor`` is the replication factor of a
    new topic."""

    topics: list[str]
    factor: int

    def found(self) -> str:
        names = ", ".join(self.topics[:NAMED_MAX])
        more = len(self.topics) - NAMED_MAX
        have = "topics have" if len(self.topics) > 1 else "topic has"
        return (
            f"{len(self.topics)} {have} fewer replicas than the {self.factor} that a new one gets: "
            f"{names}{f' and {more} more' if more > 0 else ''}"
        )

    def cure(self) -> str:
        names = " ".join(self.topics[:NAMED_MAX]) + (" …" if len(self.topics) > NAMED_MAX else "")
        return f"logbus topic reassign {names} --replication-factor {self.factor}"


def find(admin: Admin, view: ClusterView) -> FewReplicas | None:
    """Return the topics with fewer replicas than a new topic would get; None if there are none.
    Raises LogbusError if the cluster does not answer."""
    if len(view.brokers) < 2 or not view.topics:
        return None
    broker = str(min(view.brokers))
    settings = admin.describe_configs(brokers=[int(broker)])["broker", broker]
    setting = settings.get("default.replication.factor")
    configured = int((setting and setting.value) or 0)
    factor = min(configured or USUAL, len(view.brokers))
    topics = fewer_replicas(view, factor)
    return FewReplicas(topics, factor) if topics else None
