"""One sample of a cluster: brokers, partitions, reassignments, min.insync.replicas, and the
brokers' reports on themselves."""

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
    """The state of a cluster at one time. ``insync_settings`` has min.insync.replicas, as text, of
    each topic with an unhealthy partition; ``moves`` are the reassignments in progress."""

    view: ClusterView
    moves: Mapping[TopicPartition, Reassignment]
    insync_settings: Mapping[str, str]
    reports: tuple[BrokerReport, ...]

    @property
    def log_dirs(self) -> tuple[LogDir, ...]:
        """The data directories of all brokers that reported."""
        return tuple(row for report in self.reports for row in report.log_dirs)

    def min_insync(self, topic: str, replicas: int) -> int:
        """Return how many of a partition's ``replicas`` must be in sync for acks=all; 1 for a topic
        whose setting is not in the sample."""
        value = self.insync_settings.get(topic)
        return 1 if value is None else min_insync_of(value, replicas)


def take_sample(admin: Admin) -> ClusterSample:
    """Take a sample, which costs at most four requests and one more for each broker. Raises
    NoBrokersError if no broker answers."""
    view = admin.cluster()
    short = sorted({row.tp.topic for row in cluster_health(view) if row.state != "ok"})
    settings = admin.describe_configs(topics=short) if short else {}
    values = {
        name: entry.value
        for (_, name), rows in settings.items()
        if (entry := rows.get(SETTING)) is not None and entry.value is not None
    }
    return ClusterSample(view, admin.reassignments(), values, tuple(admin.broker_reports()))
