"""Judge from a sample whether the cluster is healthy. The verdict is a state (ok, warning or
critical) with the causes why the cluster is not healthy. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from broker_lite.client.administration.admin import BrokerReport
from broker_lite.client.administration.health import PartitionHealth, cluster_health
from broker_lite.observing.sample import ClusterSample

State = Literal["ok", "warning", "critical"]

DISK_WARNING, DISK_CRITICAL = 0.15, 0.05
"""Free disk space as a fraction (0 to 1) below which the state is a warning, and below which it is
critical."""
METADATA_AGE_S = 10.0
"""A broker without a connection to ZooKeeper counts as unhealthy once its metadata are this many
seconds old. Usually a broker reconnects earlier."""


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
"""The states of an unhealthy partition, the worst first, each with the cluster's resulting state
(warning or critical) and a cure."""
_MORE_SPACE = "shorten retention.ms or retention.bytes (logbus topic alter), or enlarge the disk"


def causes(sample: ClusterSample, groups_failure: str = "") -> list[Cause]:
    """Return the causes why a cluster is not healthy, the worst first; none for a healthy cluster.
    ``groups_failure`` is the reason why the groups could not be read, or ""."""
    lost = list(zookeeper_causes(sample.reports))
    all_causes = [
        *_controller(sample),
        *lost,
        *partition_causes(partitions(sample)),
        *disk_causes(sample),
        *unreadable_causes(sample.reports),
    ]
    if groups_failure and not lost:
        text = (
            f"their offsets cannot be read ({groups_failure}); lags are those of the last reading"
        )
        cure = "check that all brokers run, and that ZooKeeper has a quorum"
        all_causes.append(Cause("warning", "groups", text, cure))
    return sorted(all_causes, key=lambda cause: cause.state != "critical")


def state_of(reported: Iterable[Cause]) -> State:
    """Return the worst state among the causes; "ok" if there is no cause."""
    states = {cause.state for cause in reported}
    return "critical" if "critical" in states else "warning" if "warning" in states else "ok"


def partitions(sample: ClusterSample) -> list[PartitionHealth]:
    """Return the health of every partition."""
    return cluster_health(sample.view, moves=sample.moves, min_insync=sample.min_insync)


def partition_causes(rows: list[PartitionHealth]) -> Iterator[Cause]:
    """Yield a cause for each unhealthy state that partitions are in. The cause's text has the
    number of these partitions, and the name of the first as an example."""
    for state, weight, cure in _CURES:
        such = [row for row in rows if row.state == state]
        if such:
            text = f"{len(such)} of {len(rows)} partitions: {state}; {such[0].tp}: {such[0].why}"
            yield Cause(weight, "partitions", text, cure)


def broker_causes(sample: ClusterSample, broker_id: int) -> list[Cause]:
    """Return the causes why one broker is not healthy: it is down, some of its replicas are not in
    sync, its disk has failed or is nearly full, or it has lost its connection to ZooKeeper."""
    about = f"broker {broker_id}"
    if broker_id not in sample.view.brokers:
        known = ", ".join(map(str, sorted(sample.view.brokers))) or "none"
        return [Cause("critical", about, f"not registered; brokers that run: {known}",
                      "start it, and read its broker.log")]  # fmt: skip
    replicas = [
        (name, row)
        for name, topic in sample.view.topics.items()
        for row in topic.partitions
        if broker_id in row.replicas
    ]
    behind = [f"{name}-{row.partition}" for name, row in replicas if broker_id not in row.isr]
    result = [cause for cause in disk_causes(sample) if cause.about == about]
    result += zookeeper_causes([row for row in sample.reports if row.broker_id == broker_id])
    if behind:
        text = f"{len(behind)} of {len(replicas)} replicas are not in sync, such as {behind[0]}"
        cure = f"wait for it: logbus health --broker {broker_id} --wait"
        result.append(Cause("warning", about, text, cure))
    return result


def _controller(sample: ClusterSample) -> Iterator[Cause]:
    if sample.view.controller_id not in sample.view.brokers:
        yield Cause(
            "critical",
            "controller",
            "no broker is the controller, so no leader is elected",
            "check that ZooKeeper has a quorum and that the brokers reach it",
        )


def zookeeper_causes(reports: Sequence[BrokerReport]) -> Iterator[Cause]:
    """Yield a cause of bad health if brokers have lost their connection to ZooKeeper: critical if
    all have lost it, otherwise a warning."""
    ages = {row.broker_id: row.metadata_age_s or 0.0 for row in reports}
    lost = [broker_id for broker_id, age_s in ages.items() if age_s >= METADATA_AGE_S]
    if lost:
        state: State = "critical" if len(lost) == len(ages) else "warning"
        names = ("broker " if len(lost) == 1 else "brokers ") + ", ".join(map(str, lost))
        text = f"not reached by {names} for {max(ages.values()):.0f} s; leaders stay, but "
        text += "elections, offset commits, new producers and new topics wait"
        yield Cause(state, "ZooKeeper", text, "check that ZooKeeper runs and has a quorum")


def unreadable_causes(reports: Sequence[BrokerReport]) -> Iterator[Cause]:
    """Yield a warning for each znode of a user, an access control list or quotas that a broker
    cannot read."""
    for znode in sorted({each for report in reports for each in report.unreadable}):
        text = f"znode {znode.path} cannot be read: {znode.reason}"
        yield Cause("warning", "ZooKeeper", text, znode.cure)


def disk_causes(sample: ClusterSample) -> Iterator[Cause]:
    """Yield a cause for each data directory that failed or whose disk is full or nearly full."""
    full = {row.broker_id for row in sample.reports if row.is_disk_full}
    for row in sample.log_dirs:
        about = f"broker {row.broker_id}"
        if row.error is None and row.broker_id in full:
            text = f"{row.path}: the disk is full; the broker refuses records"
            yield Cause("critical", about, text, _MORE_SPACE)
            continue
        if row.error is not None:
            place = row.path or "its log directories"
            text = f"{place}: {row.error.message}"
            yield Cause("critical", about, text, "read its broker.log; replace a failed disk")
            continue
        free = row.usable_bytes / row.total_bytes if row.total_bytes > 0 else 1.0
        if row.usable_bytes >= 0 and free < DISK_WARNING:
            state: State = "critical" if free < DISK_CRITICAL else "warning"
            text = f"{row.path}: {free:.0%} of the disk is free"
            yield Cause(state, about, text, _MORE_SPACE)
