"""``logbus doctor``: find problems of this machine and of a cluster, and name the remedies.

Exit codes: 0 fine, 4 warnings, 5 critical. Findings of state "info" do not count."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import click

from broker_lite.cli import output
from broker_lite.cli.cluster_checks import CLUSTER_CHECKS
from broker_lite.cli.context import cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.machine_checks import CHECKS
from broker_lite.cli.main import EXIT_CRITICAL, EXIT_WARNING

THREADS = 16
"""Number of threads for the checks of the cluster: more threads than checks, so that no check waits
for a thread."""


@click.command()
@cluster_options
@output.output_option
def doctor(cluster: ChosenCluster, form: str | None) -> int:
    """Check Java, jars, versions, ports, limits, disk, cluster, and whether Spark finds logbus.

    \b
    Exit codes: 0  all well (state 'info' is for your information)
                4  a warning: it works, but slower or not everywhere
                5  critical: logbus or Spark does not run until you fix it

    \b
    Examples:
      logbus doctor
      logbus doctor -b bus1:9092 -o json
    """
    # Check the cluster in threads, so that all checks wait for a hung broker at the same time.
    with ThreadPoolExecutor(THREADS) as executor:
        of_cluster = executor.map(lambda check: check(cluster), CLUSTER_CHECKS)
        findings = [check() for check in CHECKS]
        findings += of_cluster
    rows = [finding._asdict() for finding in findings]
    if output.is_table(form):
        # Print cures (what to do) below the table: a column of sentences would be wider than the
        # screen.
        output.show(rows, "table", ("check", "state", "found"))
        for finding in findings:
            if finding.cure:
                click.echo(f"\n{finding.check}: {finding.cure}")
    else:
        output.show(rows, form)
    states = {finding.state for finding in findings}
    return EXIT_CRITICAL if "critical" in states else EXIT_WARNING if "warning" in states else 0
