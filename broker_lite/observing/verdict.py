"""The verdict on a sample: whether the cluster is healthy, and the causes if it is not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from broker_lite.client.administration.health import PartitionHealth, cluster_health
from broker_lite.observing.sample import ClusterSample

State = Literal["ok", "warning", "critical"]

DISK_WARNING, DISK_CRITICAL = 0.15, 0.05
"""Fractions of free disk space (0 to 1) below which the verdict is warning, and critical."""


class Cause(NamedTuple):
    """A reason why a cluster is not healthy. ``about`` names the affected object, ``found`` is the
    observation, and ``cure`` the next step."""

    state: State
    about: str
    found: str
    cure: str


_CURES: tuple[tuple[str, State, str], ...] = (
    (
        "no leader",
        "critical",
        "start the brokers that it names, with their own data directories; if they are lost for "
        "good: logbus topic elect NAME --unclean",
    ),
    ("too few in sync", "critical", "start the brokers that it names; logbus topic describe NAME"),
    (
        "under-replicated",
        "warning",
        "start the brokers that it names, or move their replicas: logbus topic reassign --off ID",
    ),
)
"""The state of an unhealthy partition, its verdict and its cure; the worst state first."""


def causes(sample: ClusterSample) -> list[Cause]:
    """Return the causes why a cluster is not healthy, the worst first; empty for a healthy
    cluster."""
    found = [*_controller(sample), *partition_causes(partitions(sample)), *disk_causes(sample)]
    return sorted(found, key=lambda cause: cause.state != "critical")


def state_of(found: Iterable[Cause]) -> State:
    """Return the worst state of the causes; ok without any."""
    states = {cause.state for cause in found}
    return "critical" if "critical" in states else "warning" if "warning" in states else "ok"


def partitions(sample: ClusterSample) -> list[PartitionHealth]:
    """Return the health of every partition."""
    return cluster_health(sample.view, moves=sample.moves, min_insync=sample.min_insync)


def partition_causes(rows: list[PartitionHealth]) -> Iterator[Cause]:
    """Yield a cause for each state in which partitions are unhealthy. It counts these partitions,
    and names the first one as an example."""
    for state, weight, cure in _CURES:
        such = [row for row in rows if row.state == state]
        if such:
            text = f"{len(such)} of {len(rows)} partitions: {state}; {such[0].tp}: {such[0].why}"
            yield Cause(weight, "partitions", text, cure)


def broker_causes(sample: ClusterSample, broker_id: int) -> list[Cause]:
    """Return why one broker is not healthy: it is down, some of its replicas are not in sync, or
    its disk has failed or is nearly full."""
    about = f"broker {broker_id}"
    if broker_id not in sample.view.brokers:
        known = ", ".join(map(str, sorted(sample.view.brokers))) or "none"
        return [Cause("critical", about, f"not registered; brokers that run: {known}",
                      "start it, and read its broker.log")]  # fmt: skip
    held = [
        (name, row)
        for name, topic in sample.view.topics.items()
        for row in topic.partitions
        if broker_id in row.replicas
    ]
    behind = [f"{name}-{row.partition}" for name, row in held if broker_id not in row.isr]
    found = [cause for cause in disk_causes(sample) if cause.about == about]
    if behind:
        text = f"{len(behind)} of {len(held)} replicas are not in sync, such as {behind[0]}"
        cure = f"wait for it: logbus health --broker {broker_id} --wait"
        found.append(Cause("warning", about, text, cure))
    return found


def _controller(sample: ClusterSample) -> Iterator[Cause]:
    if sample.view.controller_id not in sample.view.brokers:
        yield Cause(
            "critical",
            "controller",
            "no broker is the controller, so no leader is elected",
            "check that ZooKeeper has a quorum and that the brokers reach it",
        )


def disk_causes(sample: ClusterSample) -> Iterator[Cause]:
    """Yield a cause for each data directory that failed or whose disk is nearly full."""
    for row in sample.log_dirs:
        about = f"broker {row.broker_id}"
        if row.error is not None:
            place = row.path or "its log directories"
            text = f"{place}: {row.error.message}"
            yield Cause("critical", about, text, "read its broker.log; replace a failed disk")
            continue
        free = row.usable_bytes / row.total_bytes if row.total_bytes > 0 else 1.0
        if row.usable_bytes >= 0 and free < DISK_WARNING:
            state: State = "critical" if free < DISK_CRITICAL else "warning"
            text = f"{row.path}: {free:.0%} of the disk is free"
            cure = "shorten retention.ms or retention.bytes (logbus topic alter), or enlarge it"
            yield Cause(state, about, text, cure)
