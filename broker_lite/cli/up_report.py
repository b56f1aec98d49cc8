"""The report of ``logbus up``: where the cluster is, the next steps, what has changed.

A person gets lines, a script one JSON object on stdout. Both leave out the process marks that only
``down`` and ``status`` need.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from broker_lite.cli import output, running
from broker_lite.errors import LogbusError

LOG = "up.log"
"""In the cluster's folder: the log of a detached ``up``."""
_ANSWER_MS = 5000
_INTERNAL = ("processes", "zookeeper_pid")

Facts = dict[str, Any]


class Words(NamedTuple):
    """How to report a start: in ``form``; ``port`` was asked for (0: any); the folder had data
    of so many brokers."""

    form: str | None
    port: int
    brokers_before: int

    def say(self, facts: Facts, ending: str) -> None:
        """Report surprises first, then the next steps."""
        for number, broker in enumerate(facts["brokers"]):
            if self.port and broker["port"] != self.port + number:
                first = self.port + number
                output.say(f"port {first} is taken: broker {number} has {broker['port']}")
                break
        _tell_of_others(facts)
        if importlib.util.find_spec("uvloop") is None:
            _tell_of_slow_loop()
        count = len(facts["brokers"])
        if 0 < self.brokers_before < count:
            _tell_of_few_replicas(facts)
        elif self.brokers_before > count:
            output.say(
                f"this folder has data of {self.brokers_before} brokers, and {count} of them run: "
                "partitions whose replicas are on the others may have no leader or refuse writes. "
                f"Start all: logbus down; logbus up --brokers {self.brokers_before}"
            )
        announce(facts, self.form, ending)


def brokers_in(directory: Path | None) -> int:
    """Return how many brokers have data in a folder."""
    return 0 if directory is None else len(list(directory.glob("broker-*/")))


def announce(facts: Facts, form: str | None, ending: str) -> None:
    """Print the report. ``form`` None: lines on a terminal; in a pipe the object, with the lines
    on stderr."""
    if form is not None:
        output.show_one({key: facts[key] for key in facts if key not in _INTERNAL}, form)
    else:
        is_terminal = sys.stdout.isatty()
        if not is_terminal:
            announce(facts, "jsonl", ending)
        click.echo("\n".join([*_where(facts), "", *_next(facts), "", ending]), err=not is_terminal)
    sys.stdout.flush()


def _where(facts: Facts) -> list[str]:
    count = len(facts["brokers"])
    parts = {
        f"{count} broker{'s' if count > 1 else ''}": facts["bootstrap_servers"],
        "ZooKeeper": facts["zookeeper"],
        "data": facts["directory"],
        "logs": f"in that folder: broker-N/broker.log, zookeeper/zookeeper.log, {LOG} (with -d)",
    }
    if facts.get("client_config"):
        parts["logins"] = f"user admin over TLS: {facts['client_config']} (logbus -F)"
    metrics_ports = [broker.get("metrics_port") for broker in facts["brokers"]]
    if any(metrics_ports):
        parts["metrics"] = " ".join(f"http://127.0.0.1:{port}/metrics" for port in metrics_ports)
    return [f"{name + ':':<11} {value}" for name, value in parts.items()]


def _next(facts: Facts) -> list[str]:
    return [
        "Next:  logbus topic create events -p 3",
        "       ls -l | logbus produce events",
        "       logbus consume events",
        "Spark: spark.readStream.format('logbus').option('subscribe', 'events')",
        f"            .option('bootstrap.servers', '{facts['bootstrap_servers']}').load()",
    ]


def _tell_of_others(facts: Facts) -> None:
    """Say which cluster clients find by default, if several run."""
    others = [other for other in running.alive() if not running.is_same(other, facts)]
    if others:
        there = "; ".join(
            f"-b {other['bootstrap_servers']} ({running.names([other])})" for other in others
        )
        output.say(
            "Commands and clients that name no cluster mean this one from now on. "
            f"Also running: {there}"
        )


def _tell_of_slow_loop() -> None:
    """Report the doctor's finding about a host without uvloop."""
    from broker_lite.cli import doctor

    finding = doctor.event_loop()
    output.say(f"{finding.check} is {finding.found}. To install it: {finding.cure}")


def _tell_of_few_replicas(facts: Facts) -> None:
    """Report topics with too few replicas after a cluster has grown."""
    from broker_lite.cli import under_replication
    from broker_lite.client.administration.admin import Admin

    try:
        with Admin(facts["bootstrap_servers"], timeout_ms=_ANSWER_MS) as admin:
            few = under_replication.find(admin, admin.cluster())
    except LogbusError:
        return  # the cluster runs; the doctor checks this, too
    if few is not None:
        output.say(f"{few.found()}. To move them: {few.cure()}")
