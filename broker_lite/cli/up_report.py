"""The report of ``logbus up``: the cluster's addresses, the next steps, and warnings.

On a terminal the report is lines of text; for a script it is one JSON object on stdout. Process
ids, which only ``down`` and ``status`` need, are left out."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from broker_lite.cli import output, running
from broker_lite.client import discovery
from broker_lite.errors import LogbusError
from broker_lite.model import INTERNAL_PREFIX, Endpoint

LOG = "up.log"
"""Name of the log of a detached ``up``, in the cluster's folder."""
EXAMPLE = "events"
"""Topic name in the suggested commands, if the cluster has no topics."""
_ANSWER_MS = 5000
"""Maximum milliseconds that the report waits for an answer of the brokers."""
_INTERNAL = ("processes", "zookeeper_pid", "metrics_tls", "metrics_host")
"""Keys of ``cluster.json`` that the report omits."""
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The loopback address that reaches a port bound to a wildcard address."""

Facts = dict[str, Any]
"""The content of ``cluster.json``: a cluster's addresses, folder and processes
(``cli.running``)."""


class UpReport(NamedTuple):
    """The parameters of the report: ``form`` is the output format, ``port`` the requested port (0:
    any), ``brokers_before`` the number of brokers that had data in the folder before this start."""

    form: str | None
    port: int
    brokers_before: int

    def show(self, facts: Facts, ending: str) -> None:
        """Print warnings (for example of missing brokers), then the addresses and example
        commands."""
        for number, broker in enumerate(facts["brokers"]):
            if self.port and broker["port"] != self.port + number:
                first = self.port + number
                output.say(f"port {first} is taken: broker {number} has port {broker['port']}")
                break
        if running.is_recorded(facts):
            _warn_of_other_clusters(facts)
        else:
            _warn_of_missing_record(facts)
        if importlib.util.find_spec("uvloop") is None:
            _warn_of_slow_loop()
        count = len(facts["brokers"])
        if 0 < self.brokers_before < count:
            _warn_of_few_replicas(facts)
        elif self.brokers_before > count:
            output.say(
                f"this folder has data of {self.brokers_before} brokers, and {count} of them run: "
                "partitions whose replicas are on the others may have no leader or refuse writes. "
                f"Start all: logbus down; logbus up --brokers {self.brokers_before}"
            )
        announce(facts, self.form, ending, is_new=self.brokers_before == 0)


def brokers_in(directory: Path | None) -> int:
    """Return how many brokers have data in a folder."""
    return 0 if directory is None else len(list(directory.glob("broker-*/")))


def announce(facts: Facts, form: str | None, ending: str, *, is_new: bool) -> None:
    """Print the report of a cluster that runs now.

    ``form`` is the output format. If it is None, print lines of text to a terminal; if stdout is a
    pipe, print JSON to stdout and the lines to stderr. ``ending`` is the last line: how to stop the
    cluster. With ``is_new``, the cluster has no topics yet."""
    if form is not None:
        output.show_one({key: facts[key] for key in facts if key not in _INTERNAL}, form)
    else:
        is_terminal = sys.stdout.isatty()
        if not is_terminal:
            announce(facts, "jsonl", ending, is_new=is_new)
        steps = _next(facts, _topic(facts) if not is_new else None)
        click.echo("\n".join([*_where(facts), "", *steps, "", ending]), err=not is_terminal)
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
        parts["logins"] = (
            "user admin over TLS. Commands, Python and Spark on this machine need no option; "
            f"elsewhere: logbus topic list -F {shlex.quote(facts['client_config'])}"
        )
    if facts.get("console"):
        parts["console"] = facts["console"]
    metrics_ports = [broker.get("metrics_port") for broker in facts["brokers"]]
    if any(metrics_ports):
        scheme = "https" if facts.get("metrics_tls") else "http"
        host = str(facts.get("metrics_host", "127.0.0.1"))
        host = _LOOPBACK.get(host, host)
        parts["metrics"] = " ".join(
            f"{scheme}://{Endpoint(host, port)}/metrics" for port in metrics_ports
        )
    return [f"{name + ':':<11} {value}" for name, value in parts.items()]


def _next(facts: Facts, topic: str | None) -> list[str]:
    """Return lines with example commands for the user. They use the existing topic ``topic``; if it
    is None, the first creates a topic."""
    name = topic or EXAMPLE
    steps = [f"ls -l | logbus produce {name}", f"logbus consume {name}"]
    if topic is None:
        steps.insert(0, f"logbus topic create {name} -p 3")
    return [
        *(f"{'Next:' if number == 0 else '':<6} {step}" for number, step in enumerate(steps)),
        f"Spark: spark.readStream.format('logbus').option('subscribe', '{name}')",
        f"            .option('bootstrap.servers', '{facts['bootstrap_servers']}').load()",
    ]


def _topic(facts: Facts) -> str | None:
    """Return a topic for the report's example commands; None if the cluster has no topics or does
    not answer."""
    from broker_lite.client.administration.admin import Admin

    try:
        with Admin(facts["bootstrap_servers"], timeout_ms=_ANSWER_MS) as admin:
            topics = admin.cluster().topics
            names = sorted(name for name in topics if not name.startswith(INTERNAL_PREFIX))
    except LogbusError:
        return None
    return EXAMPLE if EXAMPLE in names else next(iter(names), None)


def warn_of_advertised_host(settings: Mapping[str, str]) -> None:
    """Warn if the brokers with these settings would advertise a wildcard address (0.0.0.0 or ::) to
    clients."""
    host = settings["host"]
    if host in ("0.0.0.0", "::") and not settings.get("advertised.host"):
        output.say(
            f"brokers tell clients to connect to {host}, which other machines resolve to "
            "themselves. To serve other machines, add: -c advertised.host=NAME"
        )


def _warn_of_missing_record(facts: Facts) -> None:
    """Warn that other commands cannot find the cluster, and show how to name it."""
    login = facts.get("client_config")
    output.say(
        f"{discovery.data_directory()} cannot be written, so commands and clients do not find this "
        f"cluster by themselves. Name it: export LOGBUS_BOOTSTRAP_SERVERS="
        f"{facts['bootstrap_servers']}" + (f" LOGBUS_CLIENT_CONFIG={login}" if login else "")
    )


def _warn_of_other_clusters(facts: Facts) -> None:
    """If several clusters run, say which of them clients use by default."""
    others = [other for other in running.alive() if not running.is_same(other, facts)]
    if others:
        there = "; ".join(
            f"-b {other['bootstrap_servers']} ({running.names([other])})" for other in others
        )
        output.say(
            "Commands and clients that name no cluster use this one from now on. "
            f"Also running: {there}"
        )


def _warn_of_slow_loop() -> None:
    """Say that this host lacks uvloop, and how to install it."""
    from broker_lite.cli import machine_checks

    finding = machine_checks.event_loop()
    output.say(f"{finding.check} is {finding.found}. To install it: {finding.cure}")


def _warn_of_few_replicas(facts: Facts) -> None:
    """Warn of topics with fewer replicas than a new topic would get, because the cluster now has
    more brokers."""
    from broker_lite.cli import under_replication
    from broker_lite.client.administration.admin import Admin

    try:
        with Admin(facts["bootstrap_servers"], timeout_ms=_ANSWER_MS) as admin:
            few = under_replication.find(admin, admin.cluster())
    except LogbusError:
        return  # If the lookup fails, do not warn: ``logbus doctor`` makes this check, too.
    if few is not None:
        output.say(f"{few.found()}. To move them: {few.cure()}")
