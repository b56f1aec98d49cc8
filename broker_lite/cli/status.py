"""``logbus status``: the processes of a cluster, and the causes why it is not healthy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output, running
from broker_lite.cli.context import bootstrap, cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.main import EXIT_UNREACHABLE
from broker_lite.cli.up_report import LOG
from broker_lite.client import discovery
from broker_lite.errors import LogbusError

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.operations.cluster import ClusterView
    from broker_lite.observing.sample import ClusterSample

STATUS_MS = 3000
"""Maximum milliseconds that ``status`` waits for an answer of the brokers."""


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the cluster. Default: the last one that 'up' started.",
)
@cluster_options
@output.output_option
def status(directory: Path | None, cluster: ChosenCluster, form: str | None) -> int:
    """Show a cluster's brokers and problems; exit code 3 if a broker is down or none answers.

    Without --dir, the command shows the cluster that other commands would use. For a cluster of
    this machine, it also shows processes and memory. The problems are those of logbus health.

    \b
    Examples:
      logbus status
      logbus status --dir ./cluster
      logbus status -b kafka1:9092,kafka2:9092 -o json
      logbus status --context prod
    """
    if directory is None and (cluster.is_named or discovery.cluster_variable()):
        servers = bootstrap(cluster)
        facts = running.at(servers)
        if facts is None:
            return _show_state(*_remote_state(servers), form)
    else:
        facts = running.find(directory)
    shown, brokers = _state(facts)
    code = _show_state(shown, brokers, form)
    if shown["running"] < len(brokers):
        output.say(_cure(facts))
    others = [other for other in running.alive() if not running.is_same(other, facts)]
    if directory is None and not cluster.is_named and others:
        output.say(f"also running: {running.names(others)}")
    return code


def _show_state(shown: dict[str, Any], brokers: list[dict[str, Any]], form: str | None) -> int:
    if output.is_table(form):
        output.show_one({name: value for name, value in shown.items() if name != "causes"}, "table")
        click.echo()
        memory = [{"memory": output.size(broker.pop("memory_bytes"))} for broker in brokers]
        output.show([row | cell for row, cell in zip(brokers, memory, strict=True)], "table")
    else:
        output.show_one(shown | {"brokers": brokers}, form)
    # The topics are unknown (None) if no running broker answers, for example because all hang.
    is_up = shown["running"] == len(brokers) and shown["topics"] is not None
    return 0 if is_up else EXIT_UNREACHABLE


def _remote_state(servers: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the state of a cluster on other machines, as its brokers report it, and a row for each
    broker. Process ids and memory are None. Raises NoBrokersError if no broker answers."""
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.administration.health import BrokerLoad, broker_loads

    with Admin(servers, timeout_ms=STATUS_MS) as admin:
        view = admin.cluster()
        condition = _condition(admin, view)
    loads = broker_loads(view)
    brokers = []
    for broker_id in sorted({*view.brokers, *loads}):
        endpoint = view.brokers.get(broker_id)
        brokers.append(
            {
                "id": broker_id,
                "host": endpoint and endpoint.host,
                "port": endpoint and endpoint.port,
                "pid": None,
                "metrics_port": None,
                "running": endpoint is not None,
                "memory_bytes": None,
                **loads.get(broker_id, BrokerLoad(0, 0, 0))._asdict(),
            }
        )
    shown: dict[str, Any] = {
        "bootstrap_servers": servers,
        "zookeeper": None,
        "directory": None,
        "running": len(view.brokers),
    }
    return shown | condition, brokers


def _state(facts: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.administration.health import broker_loads
    from broker_lite.local import process

    marks: dict[str, str] = facts.get("processes") or {}
    brokers = []
    for broker in facts["brokers"]:
        pid = broker["pid"] or 0
        runs = process.is_running(pid, marks.get(str(pid), ""))
        memory = process.memory_bytes(pid) if runs else None
        brokers.append(broker | {"running": runs, "memory_bytes": memory})
    shown: dict[str, Any] = {
        "bootstrap_servers": facts["bootstrap_servers"],
        "zookeeper": facts["zookeeper"],
        "directory": facts["directory"],
        "running": sum(broker["running"] for broker in brokers),
        "controller": None,
        "topics": None,
        "partitions": None,
        "under_replicated": None,
        "leaderless": None,
        "causes": None,
    }
    if shown["running"]:
        try:
            with Admin(facts["bootstrap_servers"], timeout_ms=STATUS_MS) as admin:
                view = admin.cluster()
                shown |= _condition(admin, view)
            loads = broker_loads(view)
            brokers = [
                broker | (loads[broker["id"]]._asdict() if broker["id"] in loads else {})
                for broker in brokers
            ]
        except LogbusError as error:
            output.say(f"the brokers do not answer: {error}")
    return shown, brokers


def _condition(admin: Admin, view: ClusterView) -> dict[str, Any]:
    """Print the causes why the cluster is not healthy. Return them with the controller and the
    numbers of topics and partitions, which ``logbus status`` shows."""
    from broker_lite.client.administration.health import cluster_health
    from broker_lite.observing.verdict import causes

    found = causes(_sample(admin, view))
    for cause in found:
        output.say(f"{cause.state}: {cause.about}: {cause.found}\n  to do: {cause.cure}")
    health = cluster_health(view)
    return {
        "controller": view.controller_id,
        "topics": len(view.topics),
        "partitions": len(health),
        "under_replicated": sum(row.state == "under-replicated" for row in health),
        "leaderless": sum(row.state == "no leader" for row in health),
        "causes": [cause._asdict() for cause in found],
    }


def _sample(admin: Admin, view: ClusterView) -> ClusterSample:
    """Return a sample of the cluster. If the user may not describe the cluster, or a broker does
    not answer, the sample has only ``view``."""
    from broker_lite.observing.sample import ClusterSample, take_sample

    try:
        return take_sample(admin, view=view, with_sizes=False)
    except LogbusError as error:
        output.say(f"disks, reassignments and ZooKeeper are not checked: {error}")
        return ClusterSample(view, {}, {}, ())


def _cure(facts: dict[str, Any]) -> str:
    """Return what the user can do about brokers of the cluster that are down."""
    directory, named = facts["directory"], running.names([facts])
    if not running.is_held(facts):
        return f"the cluster ended without 'logbus down'; start it with: logbus up {named}"
    return (
        f"'logbus up' (process {facts['pid']}) restarts ended processes. If a restart fails, "
        f"{directory}/{LOG} (if detached) and broker-N/broker.log there have the reason. To begin "
        f"again: logbus down {named}, then logbus up {named}"
    )
