"""``logbus groups``: consumer groups and Spark queries, and the offsets that they committed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import offset_spec, output
from broker_lite.cli.change import ChangeOptions, change_options, if_exists_option
from broker_lite.cli.completion import GROUP, TOPIC
from broker_lite.cli.context import (
    chosen_partitions,
    cluster_options,
    found_topic,
    name_pattern,
    open_admin,
)
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.nouns import Noun
from broker_lite.cli.progress import group_progress, pending, uncounted
from broker_lite.client.administration import log_positions
from broker_lite.client.administration.group_lag import owned_by
from broker_lite.client.administration.query_lease import holder_of, lease_of
from broker_lite.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.observing.group_kinds import NATIVE, SPARK, group_kind

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin, GroupListing


@click.group(cls=Noun)
def groups() -> None:
    """Consumer groups, Spark queries among them.

    \b
    Examples:
      logbus groups
      logbus groups describe readers
      logbus groups seek readers events --to @-1h --yes
    """


@groups.command("list")
@click.option("-r", "--regex", help="Only groups whose whole name matches this pattern.")
@cluster_options
@output.output_option
def list_groups(regex: str | None, cluster: ChosenCluster, form: str | None) -> None:
    """List groups.

    KIND: a broker coordinates the members of a Consumer group, which are clients of logbus or of
    Kafka; the members of a Native group coordinate through ZooKeeper. A group of the kind 'Offsets
    only' has had no member yet; its first member decides its later kind. A Spark query publishes
    its progress to a group without members, and the group's state is Running while the query runs.

    \b
    Examples:
      logbus groups list
      logbus groups list -r 'spark-.*' -o json
    """
    pattern = name_pattern(regex)
    with open_admin(cluster) as admin:
        rows = [
            _listed(admin, item)
            for item in sorted(admin.list_groups())
            if pattern.fullmatch(item.group)
        ]
    output.show(rows, form)
    if not rows:
        output.say("there is no group" if regex is None else f"no group matches {regex!r}")


GATHERING = "PreparingRebalance"
"""State of a group whose members have not rejoined yet, for example after another broker became its
coordinator."""


def _listed(admin: Admin, item: GroupListing) -> dict[str, Any]:
    """Return the row of a listed group.

    For a group without members, fetch the committed offsets too: only their metadata show whether a
    Spark query publishes its progress to the group."""
    state, kind = item.state, group_kind(item)
    if kind != NATIVE and state == "Empty":
        commits = admin.committed(item.group).values()
        if any(lease_of(row.metadata)[0] for row in commits):
            kind = SPARK
            state = "Running" if holder_of(commits, int(time.time() * 1000))[0] else state
    return {"group": item.group, "state": state, "kind": kind}


@groups.command()
@click.argument("group", type=GROUP)
@cluster_options
@output.output_option
def describe(group: str, cluster: ChosenCluster, form: str | None) -> None:
    """Show a group's committed offsets, lag and owners, partition by partition.

    \b
    Examples:
      logbus groups describe readers
      logbus groups describe readers -o csv
    """
    with open_admin(cluster) as admin:
        rows = group_progress(admin, group)
        unstable = admin.unstable_partitions(group)
        if not rows:
            said = _why_empty(admin, group)
    output.show(rows, form)
    if not rows:
        output.say(said)
    for text in (*uncounted(rows), *pending(group, unstable)):
        output.say(text)


def _why_empty(admin: Admin, group: str) -> str:
    """Return why there is nothing to show of a group: it has no committed offsets, and no member
    reads a partition. Raises GroupIdNotFoundError for an unknown group."""
    states = {item.group: item.state for item in admin.list_groups()}
    if group not in states:
        raise _no_group(group)
    if admin.group_members(group):
        return f"group {group!r} has members that read nothing yet, and has committed nothing"
    if states[group] == GATHERING:
        return _gathering(group)
    return f"group {group!r} is empty: it has no members and no offsets in topics that exist"


def _gathering(group: str) -> str:
    return (
        f"group {group!r} had members when its coordinator went down. Live members rejoin within "
        "a third of their session timeout; repeat the command then"
    )


def _no_group(group: str) -> GroupIdNotFoundError:
    return GroupIdNotFoundError(f"there is no group {group!r}; see: logbus groups list")


@groups.command()
@click.argument("group", type=GROUP)
@cluster_options
@output.output_option
def members(group: str, cluster: ChosenCluster, form: str | None) -> None:
    """Show a group's live members and their partitions.

    \b
    Examples:
      logbus groups members readers
      logbus groups members readers -o json
    """
    with open_admin(cluster) as admin:
        try:
            described = admin.describe_groups([group])[group]
        except GroupIdNotFoundError:
            raise _no_group(group) from None
        query, _ = holder_of(admin.committed(group).values(), int(time.time() * 1000))
    rows = [
        {
            "group": group,
            "member": row.member_id,
            "client": row.client_id,
            "host": row.client_host,
            "partitions": len(owned_by(row)),
            "owns": " ".join(f"{topic}-{partition}" for topic, partition in owned_by(row)),
        }
        for row in sorted(described.members)
    ]
    output.show(rows, form)
    if not rows and described.state == GATHERING:
        output.say(_gathering(group))
    elif not rows:
        output.say(
            f"group {group!r} has no live member"
            + (f"; a Spark query ({query}) reads and publishes its progress to it" if query else "")
        )


TO_HELP = (
    "earliest, latest, N (an offset), +N (N after the earliest), -N (N before the latest), "
    "@TIME or @-1h. A position outside of the log becomes its nearest end."
)


@groups.command()
@click.argument("group", type=GROUP)
@click.argument("topic", type=TOPIC)
@click.option("--to", required=True, help=TO_HELP)
@click.option("-p", "--partition", type=int, multiple=True, help="Only these partitions.")
@change_options
@cluster_options
@output.output_option
def seek(
    group: str,
    topic: str,
    to: str,
    partition: tuple[int, ...],
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Move a group's offsets in a topic. The command fails while the group has members or a running
    Spark query commits to it.

    \b
    Examples:
      logbus groups seek readers events --to earliest --dry-run
      logbus groups seek readers events -p 0 --to 1500 --yes
      logbus groups seek readers events --to @2026-11-20T08:00 --yes
    """
    spec = offset_spec.parse(to)
    with open_admin(cluster) as admin:
        facts = found_topic(admin.cluster(), topic)
        ids = dict.fromkeys(chosen_partitions(facts, partition), facts.topic_id)
        _move(admin, group, ids, spec, change=change, form=form)


@groups.command("reset-offsets")
@click.argument("group", type=GROUP)
@click.option("--to", required=True, help=TO_HELP)
@click.option(
    "-t",
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    help="Only these topics. Default: all with offsets of the group.",
)
@change_options
@cluster_options
@output.output_option
def reset_offsets(
    group: str,
    to: str,
    topics: tuple[str, ...],
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Move a group's offsets in all its topics. The command fails while the group has members or a
    running Spark query commits to it.

    \b
    Examples:
      logbus groups reset-offsets readers --to latest --dry-run
      logbus groups reset-offsets readers -t events --to @-1h --yes
    """
    spec = offset_spec.parse(to)
    with open_admin(cluster) as admin:
        names = topics or sorted({tp.topic for tp in _committed(admin, group)})
        view = admin.cluster()
        topics_found = [found_topic(view, name) for name in names]
        ids = {tp: facts.topic_id for facts in topics_found for tp in chosen_partitions(facts, ())}
        _move(admin, group, ids, spec, change=change, form=form)


@groups.command()
@click.argument("group", type=GROUP)
@click.option(
    "-t",
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    help="Delete only offsets in these topics.",
)
@if_exists_option
@change_options
@cluster_options
@output.output_option
def delete(
    group: str,
    topics: tuple[str, ...],
    if_exists: bool,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Delete a group, or its offsets in topics. The command fails while the group has members or a
    running Spark query commits to it.

    \b
    Examples:
      logbus groups delete readers
      logbus groups delete readers -t events --yes
      logbus groups delete readers --if-exists --yes
    """
    with open_admin(cluster) as admin:
        try:
            lost = _deleted(admin, group, topics)
        except (GroupIdNotFoundError, UnknownTopicOrPartitionError) as error:
            if not if_exists:
                raise
            output.show([], form)
            output.say(f"nothing to delete: {error.message}")
            return
        rows = [
            {"topic": tp.topic, "partition": tp.partition, "committed": lost[tp].offset}
            for tp in sorted(lost)
        ]
        output.show(rows, form)
        _refuse_readers(admin, group, topics)
        what = "these offsets of group" if topics else "group"
        if not change.is_wanted(f"Delete {what} {group!r}?"):
            return
        if topics:
            admin.delete_offsets(group, lost)
        else:
            admin.delete_group(group)


def _deleted(
    admin: Admin, group: str, topics: tuple[str, ...]
) -> Mapping[TopicPartition, CommittedOffset]:
    """Return the offsets that ``delete`` removes. Raises GroupIdNotFoundError for a group that does
    not exist, and UnknownTopicOrPartitionError for a topic without offsets of the group."""
    if not topics:
        committed = admin.committed(group)
        if not committed:
            _why_empty(admin, group)
        return committed
    lost = {tp: at for tp, at in _committed(admin, group).items() if tp.topic in topics}
    for name in topics:
        if name not in {tp.topic for tp in lost}:
            raise UnknownTopicOrPartitionError(
                f"group {group!r} has no committed offsets in topic {name!r}; see: "
                f"logbus groups describe {shlex.quote(group)}"
            )
    return lost


def _committed(admin: Admin, group: str) -> dict[TopicPartition, CommittedOffset]:
    committed = admin.committed(group)
    if not committed:
        raise GroupIdNotFoundError(
            f"group {group!r} has no committed offsets; see: logbus groups list"
        )
    return committed


def _move(
    admin: Admin,
    group: str,
    ids: Mapping[TopicPartition, str],
    spec: log_positions.PositionSpec,
    *,
    change: ChangeOptions,
    form: str | None,
) -> None:
    """Show each partition's old and new offset, and commit the new offsets if the user agrees."""
    chosen = list(ids)
    resolved = log_positions.resolved_offsets(admin, chosen, spec)
    before = admin.committed(group, chosen)
    offset_spec.say_outside(resolved)
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "from": before[tp].offset if tp in before else None,
            "to": at.offset,
        }
        for tp, at in resolved.items()
    ]
    output.show(rows, form)
    _refuse_readers(admin, group)
    if all(row.group != group for row in admin.list_groups()):
        output.say(f"group {group!r} does not exist; this creates it")
    if change.is_wanted(f"Move these offsets of group {group!r}?"):
        admin.commit_offsets(
            group, {tp: CommittedOffset(at.offset, topic_id=ids[tp]) for tp, at in resolved.items()}
        )


def _refuse_readers(admin: Admin, group: str, topics: tuple[str, ...] = ()) -> None:
    """Raise an error if a group has members or a running Spark query, before its offsets are
    changed.

    The next commit of a member or query would overwrite the change. With ``topics``, members of a
    Kafka group that read none of these topics are allowed. Raises NonEmptyGroupError,
    GroupSubscribedToTopicError and GroupLeaseHeldError."""
    kinds = {row.group: group_kind(row) for row in admin.list_groups()} if topics else {}
    readers = admin.group_members(group)
    read = {tp.topic for owned in readers.values() for tp in owned}
    if topics and kinds.get(group) != NATIVE:
        if common := sorted(read.intersection(topics)):
            raise GroupSubscribedToTopicError(
                f"group {group!r} has live members that read {', '.join(common)}; stop them first"
            )
    elif readers:
        raise NonEmptyGroupError(f"group {group!r} has live members; stop them first")
    admin.refuse_query(group)
