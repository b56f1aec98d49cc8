"""``logbus mirror``: copy topics, settings and group offsets of another cluster to this one."""

from __future__ import annotations

import json
import shlex
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.context import bootstrap, cluster_options, name_pattern
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.main import EXIT_INTERRUPTED, exit_code
from broker_lite.errors import InvalidConfigError

if TYPE_CHECKING:
    from broker_lite.mirror.mirror import Mirror

EXIT_PARTLY = 1
"""Exit code if topics could not be copied."""


@click.command()
@click.option("--from", "source", required=True, metavar="HOST:PORT", help="Brokers of the source.")
@click.option("--to", "target", metavar="HOST:PORT", help="Brokers of the target. Default: -b.")
@click.option(
    "--from-config",
    "source_config",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the source's security.protocol, sasl.username, … (-F is the target's).",
)
@click.option(
    "--to-config",
    "target_config",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the target's security settings. Default: -F.",
)
@click.option("--topics", default=".*", help="Only topics whose whole name matches.")
@click.option("--groups", default=".*", help="Only offsets of groups whose whole name matches.")
@click.option(
    "-r", "--replication-factor", type=int, default=-1, help="Replicas of a copied topic."
)
@click.option("--once", is_flag=True, help="Stop at the end of the source's logs as of now.")
@click.option(
    "--session-timeout-ms",
    default=6000,
    show_default=True,
    help="Time for which a killed mirror blocks the next one.",
)
@click.option(
    "--translate",
    metavar="JSON",
    help='Only print these offsets of the source, {"topic": {"0": 42}}, as offsets of the copy.',
)
@cluster_options
@output.output_option
def mirror(
    source: str,
    target: str | None,
    source_config: str | None,
    target_config: str | None,
    topics: str,
    groups: str,
    replication_factor: int,
    once: bool,
    session_timeout_ms: int,
    translate: str | None,
    cluster: ChosenCluster,
    form: str | None,
) -> int:
    """Copy topics, settings and group offsets of a Kafka (3.1 or later) or logbus cluster.

    The mirror runs until Ctrl-C, and the next run resumes where it stopped. It copies committed
    records only, and each once; to ensure this, only one mirror of a source runs at a time. It
    translates a group's offsets, unless the group has members on the target or progress of its own
    there.

    \b
    Examples:
      logbus mirror --from kafka1:9092
      logbus mirror --from kafka1:9092 --to bus1:9092 --topics 'orders-.*'
      logbus mirror --from kafka1:9092 --once
      logbus mirror --from kafka1:9093 --from-config kafka.conf --to bus1:9092
    """
    from broker_lite.cli.option_names import Spelling, called
    from broker_lite.client.client_config import security_of_file
    from broker_lite.client.discovery import recorded_security
    from broker_lite.mirror.mirror import Mirror

    for name, pattern in (("--topics", topics), ("--groups", groups)):
        name_pattern(pattern, name)
    if target and cluster.bootstrap_servers:
        raise click.UsageError("--to and -b both name the target; give one of them")
    with called({"bootstrap.servers": Spelling("--from")}):
        sources = bootstrap(ChosenCluster(source))
    with called({"bootstrap.servers": Spelling("--to")} if target else {}):
        servers = bootstrap(cluster._replace(bootstrap_servers=target) if target else cluster)
    # Do not use the target's settings (-F, context, environment) for the source: the source's
    # brokers would receive the target's credentials.
    source_security = (
        security_of_file(Path(source_config)) if source_config else recorded_security(sources)
    )
    running = Mirror(
        sources,
        servers,
        topics=topics,
        groups=groups,
        replication_factor=replication_factor,
        session_timeout_ms=session_timeout_ms,
        source_security=source_security,
        target_security=security_of_file(Path(target_config)) if target_config else None,
        tell=output.say,
    )
    try:
        if translate is not None:
            click.echo(json.dumps(running.translated(_offsets(translate))))
            return 0
        return _run(running, servers, form, once=once)
    finally:
        running.close()


def _run(running: Mirror, servers: str, form: str | None, *, once: bool) -> int:
    """Run the mirror until a signal arrives or, with ``once``, until it has copied the source to
    its present end. Return the exit code."""
    stop = threading.Event()

    def end(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt  # A second Ctrl-C ends the command at once.
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    is_live_table = not once and form in (None, "table")
    with output.ProgressBar("records", is_alone=True) as bar:

        def show() -> None:
            bar.close()
            _show(running, form, brief=is_live_table)

        running.run(once=once, stop=stop, on_sync=show, on_left=bar.reach)
    if not running.has_begun:
        output.say("stopped before anything was copied")
        return EXIT_INTERRUPTED if running.hindrance is None else exit_code(running.hindrance)
    _print_addresses(running, servers)
    return EXIT_PARTLY if running.copies.aside or (once and running.topic_sync.absent) else 0


def _offsets(text: str) -> dict[str, dict[str, int]]:
    try:
        topics = json.loads(text)
        return {
            str(topic): {str(int(number)): int(offset) for number, offset in rows.items()}
            for topic, rows in topics.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidConfigError(
            f'--translate takes JSON like {{"topic": {{"0": 42}}}}: {error}'
        ) from None


def _partition_rows(running: Mirror) -> list[dict[str, Any]]:
    return [
        {
            "topic": copy.tp.topic,
            "partition": copy.tp.partition,
            "source_offset": copy.known.source_next,
            "target_offset": copy.known.target_next,
            "copied": copy.copied,
            "copied_before": copy.already,
            "foreign": copy.foreign,
            "aged_out": copy.aged_out,
        }
        for _, copy in sorted(running.copies.items())
    ]


def _group_rows(running: Mirror) -> list[dict[str, Any]]:
    return [
        {
            "group": row.group,
            "topic": row.tp.topic,
            "partition": row.tp.partition,
            "source_offset": row.source_offset,
            "target_offset": row.target_offset,
            "state": row.state,
        }
        for row in running.group_sync.rows
    ]


def _show(running: Mirror, form: str | None, *, brief: bool) -> None:
    partitions, groups = _partition_rows(running), _group_rows(running)
    if brief:
        copied = sum(row["copied"] for row in partitions)
        behind = sum(row["state"] == "behind" for row in groups)
        output.say(
            f"{copied} records copied of {len(partitions)} partitions; "
            f"{len(groups)} offsets of groups, {behind} of them ahead of the copy"
        )
        return
    if form in ("json", "jsonl"):
        aside = {topic: error.message for topic, error in running.copies.aside.items()}
        report = {
            "mirror": running.name,
            "partitions": partitions,
            "groups": groups,
            "set_aside": aside,
        }
        output.show_one(report, form)
        return
    if form == "csv":
        output.show(partitions, form)
        return
    output.show(partitions, "table")
    if groups:
        click.echo()
        output.show(groups, "table")


def _print_addresses(running: Mirror, servers: str) -> None:
    names = sorted({row.group for row in running.group_sync.rows if row.state == "same"})
    for name in names:
        command = f"logbus groups describe {shlex.quote(name)} -b {servers}"
        output.say(f"offsets of group {name}: {command}")
    if running.name:
        output.say(
            f"positions: logbus groups describe {running.name} -b {servers}; map of offsets: topic "
            f"{running.name}, or logbus mirror --translate"
        )
