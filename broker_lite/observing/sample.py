"""Take one sample of a cluster's state: brokers, partitions, reassignments, min.insync.replicas,
and the reports of the brokers about their disks and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.client.administration.admin import Admin, BrokerReport, LogDir
from broker_lite.client.administration.health import cluster_health
from broker_lite.client.administration.replica_requests import Reassignment
from broker_lite.client.operations.cluster import ClusterView
from broker_lite.config import min_insync_of
from broker_lite.model import TopicPartition

SETTING = "min.insync.replicas"


class ClusterSample(NamedTuple):
    """The state of a cluster at one time.

    ``insync_settings`` has min.insync.replicas, as text, of each topic with an unhealthy partition.
    ``moves`` are the reassignments in progress."""

    view: ClusterView
    moves: Mapping[TopicPartition, Reassignment]
    insync_settings: Mapping[str, str]
    reports: tuple[BrokerReport, ...]

    @property
    def log_dirs(self) -> tuple[LogDir, ...]:
        """The data directories of all brokers that reported."""
        return tuple(row for report in self.reports for row in report.log_dirs)

    def min_insync(self, topic: str, replicas: int) -> int:
        """Return how many of a partition's ``replicas`` must be in sync for acks=all; 1 if the
        sample lacks the topic's setting, as it does for healthy topics."""
        value = self.insync_settings.get(topic)
        return 1 if value is None else min_insync_of(value, replicas)

    def has_same_replicas(self, view: ClusterView) -> bool:
        """Return whether the sizes of partitions in this sample cover all partitions of a later
        ``view``: both have the same brokers, topics and partitions, and no data directory has an
        error."""
        is_whole = all(row.error is None for row in self.log_dirs)
        return is_whole and _extent(self.view) == _extent(view)


def _extent(view: ClusterView) -> tuple[set[int], dict[str, tuple[str, int]]]:
    topics = {name: (row.topic_id, len(row.partitions)) for name, row in view.topics.items()}
    return set(view.brokers), topics


def take_sample(
    admin: Admin,
    before: ClusterSample | None = None,
    *,
    view: ClusterView | None = None,
    with_sizes: bool = True,
) -> ClusterSample:
    """Take a sample of the cluster, with at most four requests and one more for each broker.

    ``view`` is the cluster's metadata if the caller has just read it. To save time, the sizes of
    partitions are taken from the sample ``before``, unless a broker, topic or partition is new.
    Without ``with_sizes``, the sample has no sizes. Raises NoBrokersError if no broker answers."""
    view = view or admin.cluster()
    short = sorted({row.tp.topic for row in cluster_health(view) if row.state != "ok"})
    settings = admin.describe_configs(topics=short) if short else {}
    values = {
        name: entry.value
        for (_, name), rows in settings.items()
        if (entry := rows.get(SETTING)) is not None and entry.value is not None
    }
    moves = admin.reassignments()
    if before is not None and before.has_same_replicas(view):
        reports = [_with_sizes(row, before) for row in admin.broker_reports(with_sizes=False)]
    else:
        reports = admin.broker_reports(with_sizes=with_sizes)
    return ClusterSample(view, moves, values, tuple(reports))


def _with_sizes(report: BrokerReport, before: ClusterSample) -> BrokerReport:
    """Add the sizes of partitions from the earlier sample ``before`` to a broker's report that was
    requested without them. Return the new report."""
    sizes = {(row.broker_id, row.path): row.partitions for row in before.log_dirs}
    rows = (
        row._replace(partitions=sizes.get((row.broker_id, row.path), {})) for row in report.log_dirs
    )
    return report._replace(log_dirs=tuple(rows))
