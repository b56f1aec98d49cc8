"""``logbus groups``: consumer groups and Spark queries, by the offsets they committed."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import moment, output
from broker_lite.cli.context import cluster_options, found_topic, open_admin
from broker_lite.cli.progress import group_progress, uncounted
from broker_lite.client.group_lag import owned_by
from broker_lite.client.query_lease import holder_of
from broker_lite.errors import (
    GroupIdNotFoundError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import CommittedOffset, TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.admin import Admin
    from broker_lite.client.cluster import TopicMetadata


@click.group()
def groups() -> None:
    """Consumer groups, Spark queries among them."""


@groups.command("list")
@click.option("-r", "--regex", help="Only groups that match this pattern as a whole.")
@cluster_options
@output.output_option
def list_groups(
    regex: str | None, bootstrap_servers: str | None, zookeeper: str | None, form: str | None
) -> None:
    """List groups."""
    with open_admin(bootstrap_servers, zookeeper) as admin:
        found = admin.list_groups()
    rows = [
        {"group": item.group, "state": item.state, "kind": item.kind}
        for item in sorted(found)
        if re.fullmatch(regex or ".*", item.group)
    ]
    output.show(rows, form)


@groups.command()
@click.argument("group")
@cluster_options
@output.output_option
def describe(
    group: str, bootstrap_servers: str | None, zookeeper: str | None, form: str | None
) -> None:
    """A group's committed offsets, lag and owners, partition by partition."""
    with open_admin(bootstrap_servers, zookeeper) as admin:
        rows = group_progress(admin, group)
        if not rows:
            said = _why_empty(admin, group)
    output.show(rows, form)
    if not rows:
        output.say(said)
    for text in uncounted(rows):
        output.say(text)


def _why_empty(admin: Admin, group: str) -> str:
    """Of a group without a partition. Raises GroupIdNotFoundError where there is no such group."""
    if group not in {item.group for item in admin.list_groups()}:
        raise GroupIdNotFoundError(f"there is no group {group!r}; see: logbus groups list")
    if admin.group_members(group):
        return f"group {group!r} has members that read nothing yet, and has committed nothing"
    return (
        f"group {group!r} is empty: it has no members and has committed nothing in topics that are "
        "there"
    )


@groups.command()
@click.argument("group")
@cluster_options
@output.output_option
def members(
    group: str, bootstrap_servers: str | None, zookeeper: str | None, form: str | None
) -> None:
    """A group's live members, and which partitions each of them reads."""
    with open_admin(bootstrap_servers, zookeeper) as admin:
        found = admin.describe_groups([group])[group].members
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
        for row in sorted(found)
    ]
    output.show(rows, form)
    if not rows:
        output.say(
            f"group {group!r} has no live member"
            + (f"; a Spark query ({query}) reads and publishes its progress to it" if query else "")
        )


TO_HELP = "earliest, latest, N, +N, -N, @TIME or @-1h."
YES_HELP = "Do it; without this the plan is only printed."


@groups.command()
@click.argument("group")
@click.argument("topic")
@click.option("--to", required=True, help=TO_HELP)
@click.option("-p", "--partition", type=int, multiple=True, help="Only these partitions.")
@click.option("--yes", is_flag=True, help=YES_HELP)
@cluster_options
@output.output_option
def seek(
    group: str,
    topic: str,
    to: str,
    partition: tuple[int, ...],
    yes: bool,
    bootstrap_servers: str | None,
    zookeeper: str | None,
    form: str | None,
) -> None:
    """Move a group's offsets in a topic. Refused while members or a query read."""
    place = moment.parse(to)
    with open_admin(bootstrap_servers, zookeeper) as admin:
        facts = found_topic(admin.cluster(), topic)
        if missing := set(partition) - {part.partition for part in facts.partitions}:
            raise click.BadParameter(
                f"{topic} has no partition {min(missing)}", param_hint="--partition"
            )
        rows = _move(admin, group, [facts], partition, place, yes)
    _show_plan(rows, yes, form)


@groups.command("reset-offsets")
@click.argument("group")
@click.option("--to", required=True, help=TO_HELP)
@click.option("-t", "--topic", "topics", multiple=True, help="Default: all that it committed in.")
@click.option("--yes", is_flag=True, help=YES_HELP)
@cluster_options
@output.output_option
def reset_offsets(
    group: str,
    to: str,
    topics: tuple[str, ...],
    yes: bool,
    bootstrap_servers: str | None,
    zookeeper: str | None,
    form: str | None,
) -> None:
    """Move a group's offsets in all its topics. Refused while members or a query read."""
    place = moment.parse(to)
    with open_admin(bootstrap_servers, zookeeper) as admin:
        names = topics or sorted({where.topic for where in _committed(admin, group)})
        view = admin.cluster()
        rows = _move(admin, group, [found_topic(view, name) for name in names], (), place, yes)
    _show_plan(rows, yes, form)


@groups.command()
@click.argument("group")
@click.option("-t", "--topic", "topics", multiple=True, help="Only its offsets in these topics.")
@click.option("--yes", is_flag=True, help=YES_HELP)
@cluster_options
@output.output_option
def delete(
    group: str,
    topics: tuple[str, ...],
    yes: bool,
    bootstrap_servers: str | None,
    zookeeper: str | None,
    form: str | None,
) -> None:
    """Forget a group, or what it committed in topics. Refused while members or a query read."""
    with open_admin(bootstrap_servers, zookeeper) as admin:
        if topics:
            lost = {tp: at for tp, at in _committed(admin, group).items() if tp.topic in topics}
            for name in topics:
                if name not in {where.topic for where in lost}:
                    raise UnknownTopicOrPartitionError(
                        f"group {group!r} has committed nothing in {name!r}"
                    )
        else:
            lost = admin.committed(group)
        if yes and topics:
            admin.delete_offsets(group, lost)
        elif yes:
            admin.delete_group(group)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "committed": lost[tp].offset}
        for tp in sorted(lost)
    ]
    _show_plan(rows, yes, form)


def _committed(admin: Admin, group: str) -> dict[TopicPartition, CommittedOffset]:
    found = admin.committed(group)
    if not found:
        raise GroupIdNotFoundError(
            f"group {group!r} has committed nothing; see: logbus groups list"
        )
    return found


def _move(
    admin: Admin,
    group: str,
    topics: list[TopicMetadata],
    only: tuple[int, ...],
    place: moment.Moment,
    yes: bool,
) -> list[dict[str, Any]]:
    """What each partition's offset becomes, and is now where ``yes``."""
    ids = {facts.name: facts.topic_id for facts in topics}
    chosen = [
        TopicPartition(facts.name, part.partition)
        for facts in topics
        for part in facts.partitions
        if not only or part.partition in only
    ]
    targets = moment.resolve(admin, chosen, place)
    before = admin.committed(group, chosen)
    if yes:
        _refuse_readers(admin, group)
        admin.commit_offsets(
            group, {tp: CommittedOffset(at, topic_id=ids[tp.topic]) for tp, at in targets.items()}
        )
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "from": before[tp].offset if tp in before else None,
            "to": offset,
        }
        for tp, offset in targets.items()
    ]


def _show_plan(rows: list[dict[str, Any]], yes: bool, form: str | None) -> None:
    output.show(rows, form)
    if not yes:
        output.say("nothing was changed; add --yes to do it")


def _refuse_readers(admin: Admin, group: str) -> None:
    """Whoever reads as the group commits again soon, and would overwrite what is done here."""
    # Seeking makes a group that is not there yet, as a first commit does.
    with contextlib.suppress(GroupIdNotFoundError):
        if admin.describe_groups([group])[group].members:
            raise NonEmptyGroupError(f"group {group!r} has live members; stop them first")
