"""``logbus health``: show whether a cluster works, with the causes of problems and their cures. The
exit code serves monitoring checks."""

from __future__ import annotations

import time

import click

from broker_lite.cli import output
from broker_lite.cli.context import bootstrap, cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.main import EXIT_CRITICAL, EXIT_TIMED_OUT, EXIT_WARNING
from broker_lite.cli.numbers import Real, Whole
from broker_lite.client.administration.admin import Admin
from broker_lite.errors import (
    BrokerNotAvailableError,
    LogbusError,
    NetworkError,
    NoBrokersError,
    RequestTimedOutError,
)
from broker_lite.observing.sample import take_sample
from broker_lite.observing.verdict import Cause, broker_causes, causes, state_of

ANSWER_MS = 5000
"""Maximum milliseconds that the command waits for an answer of the brokers."""
CHECK_S = 0.5
"""Seconds after which --wait checks the cluster again."""
_UNANSWERED = (NoBrokersError, NetworkError, BrokerNotAvailableError, RequestTimedOutError)
"""Errors that mean that no broker answers."""


@click.command()
@click.option("--broker", "broker_id", type=Whole(0), help="Check only this broker's replicas.")
@click.option("--wait", is_flag=True, help="Wait until all is well.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Real(0),
    default=300.0,
    show_default=True,
    help="Maximum seconds of --wait; the exit code is then 124.",
)
@cluster_options
@output.output_option
def health(
    broker_id: int | None, wait: bool, timeout_s: float, cluster: ChosenCluster, form: str | None
) -> int:
    """Say whether a cluster works: controller, leaders, replicas, disks; with causes and cures.

    Between two restarts of a rolling upgrade, --broker N --wait returns when the restarted broker
    runs and its replicas are in sync.

    \b
    Exit codes: 0  healthy
                4  a warning: it works, with less safety or space
                5  critical: something cannot be read or written, or no broker answers
    \b
    Examples:
      logbus health
      logbus health -b kafka1:9092 -o json
      logbus health --broker 1 --wait --timeout 120
    """

    until_s = time.monotonic() + timeout_s
    servers = bootstrap(cluster)
    printed: list[Cause] = []
    with Admin(servers, client_id="logbus-cli", timeout_ms=ANSWER_MS) as admin:
        while True:
            causes = _causes(admin, broker_id)
            if not wait or not causes or time.monotonic() >= until_s:
                break
            if causes != printed:
                output.say(f"waiting: {causes[0].about}: {causes[0].found}")
                printed = causes
            time.sleep(CHECK_S)
    _print(causes, broker_id, form)
    if wait and causes:
        output.say(f"still not healthy after {timeout_s:g} s")
        return EXIT_TIMED_OUT
    return {"ok": 0, "warning": EXIT_WARNING, "critical": EXIT_CRITICAL}[state_of(causes)]


def _causes(admin: Admin, broker_id: int | None) -> list[Cause]:
    """Return why the cluster, or the broker ``broker_id``, is not healthy; empty if all is well. If
    the cluster does not answer, that is the only cause."""
    try:
        sample = take_sample(admin, with_sizes=False)
    except _UNANSWERED as error:
        cure = "start the brokers, or name others with -b; on their machine: logbus status"
        return [Cause("critical", "cluster", _text(error), cure)]
    return causes(sample) if broker_id is None else broker_causes(sample, broker_id)


def _text(error: LogbusError) -> str:
    return error.message or str(error)


def _print(causes: list[Cause], broker_id: int | None, form: str | None) -> None:

    if not output.is_table(form):
        rows = [cause._asdict() for cause in causes]
        output.show_one({"state": state_of(causes), "causes": rows}, form)
        return
    about = "cluster" if broker_id is None else f"broker {broker_id}"
    click.echo(f"{about}: {output.coloured(state_of(causes))}")
    for cause in causes:
        state = output.coloured(cause.state)
        click.echo(f"\n{state}: {cause.about}: {cause.found}\n  to do: {cause.cure}")
