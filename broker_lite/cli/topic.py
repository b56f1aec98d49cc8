"""``logbus topic``: create, list, describe, alter, trim, delete. The module ``replicas`` has
``reassign`` and ``elect``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import offset_spec, output
from broker_lite.cli.change import ChangeOptions, change_options, if_exists_option
from broker_lite.cli.completion import TOPIC
from broker_lite.cli.context import (
    chosen_partitions,
    cluster_options,
    found_topic,
    key_values,
    name_pattern,
    open_admin,
)
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.nouns import Noun
from broker_lite.cli.numbers import INT16, INT32
from broker_lite.cli.replicas import elect, reassign
from broker_lite.client.administration import log_positions
from broker_lite.client.administration.health import partition_health
from broker_lite.config import loss_of, min_insync_of
from broker_lite.errors import TopicExistsError, UnknownTopicOrPartitionError
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker_lite.client.administration.admin import Admin, ConfigEntry
    from broker_lite.client.administration.replica_requests import Reassignment
    from broker_lite.client.operations.cluster import (
        ClusterView,
        PartitionMetadata,
        TopicMetadata,
    )


@click.group(cls=Noun)
def topic() -> None:
    """Create, list, describe, alter, trim and delete topics; move replicas, elect leaders.

    \b
    Examples:
      logbus topic create events -p 3
      logbus topic
      logbus topic describe events
    """


topic.add_command(reassign)
topic.add_command(elect)


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option(
    "-p",
    "--partitions",
    type=INT32,
    default=-1,
    help="Number of partitions. Default: the broker's setting.",
)
@click.option(
    "-r",
    "--replication-factor",
    type=INT16,
    default=-1,
    help="How many brokers hold each partition. Default: the broker's setting, usually 3.",
)
@click.option("-c", "--config", multiple=True, metavar="KEY=VALUE", help="See conf/topic.conf.")
@click.option("--if-not-exists", is_flag=True, help="No error if the topic exists.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be created.")
@cluster_options
@output.output_option
def create(
    names: tuple[str, ...],
    partitions: int,
    replication_factor: int,
    config: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Create topics.

    \b
    Examples:
      logbus topic create events -p 3
      logbus topic create orders -p 6 -r 3 -c retention.ms=604800000
      logbus topic create events --if-not-exists
    """
    settings = key_values(config, "--config")
    with open_admin(cluster) as admin, output.ChangeReport(form) as report:
        for name in names:
            created, done = not dry_run, "could be created" if dry_run else "created"
            try:
                topic_id = admin.create_topic(
                    name, partitions, replication_factor, settings, validate_only=dry_run
                )
            except TopicExistsError:
                if not if_not_exists:
                    raise TopicExistsError(
                        f"topic {name!r} exists; see: logbus topic describe {name}; to accept it, "
                        "give --if-not-exists"
                    ) from None
                topic_id = admin.cluster((name,)).topic_id(name)
                created, done = False, "exists"
            report.add({"topic": name, "topic_id": topic_id, "created": created}, f"{name}: {done}")


@topic.command("list")
@click.option("-r", "--regex", help="Only topics whose whole name matches this pattern.")
@cluster_options
@output.output_option
def list_topics(regex: str | None, cluster: ChosenCluster, form: str | None) -> None:
    """List topics with their numbers of partitions and records. The markers of transactions count
    as records.

    \b
    Examples:
      logbus topic list
      logbus topic list -r 'orders-.*' -o json
    """
    pattern = name_pattern(regex)
    with open_admin(cluster) as admin:
        topics = [
            facts
            for name, facts in sorted(admin.cluster().topics.items())
            if facts.error is None and pattern.fullmatch(name)
        ]
        ends = _ends(admin, topics)
    rows = []
    for facts in topics:
        counts = [ends[tp] for tp, _ in facts.rows]
        known = [last - first for first, last in counts if last >= 0]
        rows.append(
            {
                "topic": facts.name,
                "partitions": len(facts.partitions),
                "replicas": max((len(p.replicas) for p in facts.partitions), default=0),
                "records": sum(known) if len(known) == len(counts) else None,
                "topic_id": facts.topic_id,
            }
        )
    output.show(rows, form)
    if not rows:
        said = "no topic exists, or you may see none; create one with: logbus topic create NAME"
        output.say(said if regex is None else f"no topic matches {regex!r}")


@topic.command()
@click.argument("names", nargs=-1, required=True, type=TOPIC)
@cluster_options
@output.output_option
def describe(names: tuple[str, ...], cluster: ChosenCluster, form: str | None) -> None:
    """Show partitions, leaders, replicas, offsets, bytes, settings and health of topics.

    \b
    Examples:
      logbus topic describe events
      logbus topic describe events orders -o json
    """
    with open_admin(cluster) as admin:
        view = admin.cluster()
        topics = [found_topic(view, name) for name in names]
        ends = _ends(admin, topics)
        sizes = _sizes(admin)
        moves = admin.reassignments()
        configs = admin.describe_configs(topics=names)
    described: list[dict[str, Any]] = []
    for facts in topics:
        settings = configs[("topic", facts.name)]
        described.append(
            {
                "topic": facts.name,
                "topic_id": facts.topic_id,
                "config": {k: entry.value for k, entry in settings.items() if not entry.is_default},
                "partitions": [
                    _partition(part, ends[tp], sizes.get(tp))
                    | _health(view, tp, part, settings, moves.get(tp))
                    for tp, part in facts.rows
                ],
            }
        )
    if form in ("json", "jsonl") or (form is None and not sys.stdout.isatty()):
        output.show(described, form)
        return
    if form == "csv":
        parts = [(item["topic"], part) for item in described for part in item["partitions"]]
        output.show([{"topic": name} | part for name, part in parts], form)
        return
    for item in described:
        click.echo(f"{item['topic']}  id {item['topic_id']}  {_settings(item['config'])}")
        output.show(item["partitions"], "table")


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("-c", "--config", multiple=True, metavar="KEY=VALUE", help="Set a setting.")
@click.option("--reset", multiple=True, metavar="KEY", help="Reset a setting to its default.")
@click.option("-p", "--partitions", type=INT32, help="Raise the number of partitions to this.")
@change_options
@cluster_options
@output.output_option
def alter(
    name: str,
    config: tuple[str, ...],
    reset: tuple[str, ...],
    partitions: int | None,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Change a topic's settings or raise its number of partitions.

    The command prints each value before and after. It asks before a change that loses records, such
    as a lower retention.ms, and before it adds partitions, because partitions cannot be removed.

    \b
    Examples:
      logbus topic alter events -c retention.ms=3600000
      logbus topic alter events --reset retention.ms --dry-run
      logbus topic alter events -p 12 --yes
    """
    changes: dict[str, str | None] = dict(key_values(config, "--config"))
    if both := sorted(changes.keys() & set(reset)):
        raise click.UsageError(f"--config and --reset both name {both[0]}; give one of them")
    changes |= dict.fromkeys(reset)
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give --config, --reset or --partitions")
    with open_admin(cluster) as admin:
        before = len(found_topic(admin.cluster(), name).partitions)
        # Validate both the settings and the number of partitions before any change: if one of them
        # is invalid, change nothing.
        if changes:
            admin.alter_configs(name, changes, validate_only=True)
        if partitions is not None:
            admin.create_partitions(name, partitions, validate_only=True)
        rows, warnings = _planned(admin, name, changes)
        if partitions is not None:
            rows.append({"setting": "partitions", "from": before, "to": partitions})
            warnings.append("Added partitions stay for good, and keys move to other partitions.")
        for row in rows:
            to = "the default" if row["to"] is None else row["to"]
            output.say(f"{row['setting']}: {row['from']} -> {to}")
        is_wanted = change.is_wanted(" ".join([*warnings, "Go on?"]) if warnings else "")
        if is_wanted and changes:
            admin.alter_configs(name, changes)
        if is_wanted and partitions is not None:
            admin.create_partitions(name, partitions)
    if form is not None:
        output.show([{"topic": name, **row, "altered": is_wanted} for row in rows], form)
    elif is_wanted:
        output.say(f"{name}: altered")


def _planned(
    admin: Admin, name: str, changes: Mapping[str, str | None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each changed setting, with its value before and after (None: the default),
    and a warning for each change that deletes records."""
    if not changes:
        return [], []
    (settings,) = admin.describe_configs(topics=[name]).values()
    before = {key: settings[key].value if key in settings else None for key in changes}
    rows = [{"setting": key, "from": before[key], "to": to} for key, to in changes.items()]
    warnings = (loss_of(key, before[key], to) for key, to in changes.items())
    return rows, [text for text in warnings if text]


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("--before", required=True, help="latest, an offset, @TIME or @-7d: see 'consume'.")
@click.option("-p", "--partition", type=int, multiple=True, help="Only these partitions.")
@change_options
@cluster_options
@output.output_option
def trim(
    name: str,
    before: str,
    partition: tuple[int, ...],
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Delete a topic's records before a position.

    \b
    Examples:
      logbus topic trim events --before @-7d --yes
      logbus topic trim events --before latest
    """
    with open_admin(cluster) as admin:
        partitions = chosen_partitions(found_topic(admin.cluster(), name), partition)
        resolved = log_positions.resolved_offsets(admin, partitions, offset_spec.parse(before))
        offset_spec.say_outside(resolved)
        targets = {tp: at.offset for tp, at in resolved.items()}
        for tp, offset in targets.items():
            output.say(f"{tp}: all records before offset {offset}")
        if not change.is_wanted("Delete these records?"):
            return
        starts = admin.delete_records(targets)
    output.show([{"partition": p.partition, "start": start} for p, start in starts.items()], form)


@topic.command()
@click.argument("names", nargs=-1, required=True, type=TOPIC)
@if_exists_option
@change_options
@cluster_options
@output.output_option
def delete(
    names: tuple[str, ...],
    if_exists: bool,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Delete topics with all their records.

    \b
    Examples:
      logbus topic delete events
      logbus topic delete events orders --if-exists --yes
    """
    with open_admin(cluster) as admin, output.ChangeReport(form) as report:
        view = admin.cluster()
        there = []
        for name in dict.fromkeys(names):
            try:
                there.append(found_topic(view, name, creates=False).name)
            except UnknownTopicOrPartitionError:
                if not if_exists:
                    raise
        is_wanted = not there or change.is_wanted(f"Delete {', '.join(there)} with all records?")
        for name in dict.fromkeys(names):
            is_deleted = is_wanted and name in there
            if is_deleted:
                admin.delete_topic(name, if_exists=if_exists)
            done = "deleted" if is_deleted else "exists" if name in there else "does not exist"
            report.add({"topic": name, "deleted": is_deleted}, f"{name}: {done}")


def _ends(admin: Admin, topics: list[TopicMetadata]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the log start offset and the end offset of each partition; (-1, -1) without a
    leader."""
    rows = [row for facts in topics for row in facts.rows]
    bounds = dict.fromkeys((tp for tp, _ in rows), (-1, -1))
    led = [tp for tp, part in rows if part.leader >= 0]
    if led:
        first = admin.list_offsets(dict.fromkeys(led, EARLIEST_TIMESTAMP))
        last = admin.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP))
        bounds |= {p: (first[p].offset, last[p].offset) for p in led}
    return bounds


def _sizes(admin: Admin) -> dict[TopicPartition, int]:
    return {tp: size for folder in admin.log_dirs() for tp, size in folder.partitions.items()}


def _partition(
    part: PartitionMetadata, bounds: tuple[int, int], size_bytes: int | None
) -> dict[str, Any]:
    first, last = bounds
    return {
        "partition": part.partition,
        "leader": part.leader if part.leader >= 0 else None,
        "leader_epoch": part.leader_epoch,
        "replicas": list(part.replicas),
        "isr": list(part.isr),
        "start": first if first >= 0 else None,
        "end": last if last >= 0 else None,
        "bytes": size_bytes,
    }


def _health(
    view: ClusterView,
    tp: TopicPartition,
    part: PartitionMetadata,
    settings: Mapping[str, ConfigEntry],
    move: Reassignment | None,
) -> dict[str, Any]:
    least = settings["min.insync.replicas"].value
    found = partition_health(
        tp, part, view.brokers, move=move, min_insync=lambda _, n: min_insync_of(least, n)
    )
    moving = f"moving: to {list(move.adding)} off {list(move.removing)}" if move else ""
    return {"state": found.state, "why": "; ".join(filter(None, (found.why, moving))) or None}


def _settings(config: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in config.items())
