"""``logbus groups``: consumer groups and Spark queries, by the offsets they committed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import offset_spec, output
from broker_lite.cli.context import cluster_options, found_topic, name_pattern, open_admin
from broker_lite.cli.nouns import Noun
from broker_lite.cli.progress import group_progress, uncounted
from broker_lite.client.administration.group_lag import owned_by
from broker_lite.client.administration.query_lease import holder_of, lease_of
from broker_lite.errors import (
    GroupIdNotFoundError,
    GroupLeaseHeldError,
    GroupSubscribedToTopicError,
    LogbusError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import CommittedOffset, TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin, GroupListing
    from broker_lite.client.operations.cluster import TopicMetadata


@click.group(cls=Noun)
def groups() -> None:
    """Consumer groups, Spark queries among them."""


@groups.command("list")
@click.option("-r", "--regex", help="Only groups that match this pattern as a whole.")
@cluster_options
@output.output_option
def list_groups(
    regex: str | None, bootstrap_servers: str | None, zookeeper: str | None, form: str | None
) -> None:
    """List groups.

    KIND: a broker coordinates the members of a Kafka group, those of a Native one coordinate
    themselves in ZooKeeper; a group that has Offsets only takes either, and is what its first
    member is from then on; a Spark query publishes its progress to a group that has no members, and
    is Running while it does.
    """
    pattern = name_pattern(regex)
    with open_admin(bootstrap_servers, zookeeper) as admin:
        rows = [
            _listed(admin, item)
            for item in sorted(admin.list_groups())
            if pattern.fullmatch(item.group)
        ]
    output.show(rows, form)
    if not rows:
        output.say("there is no group" if regex is None else f"no group matches {regex!r}")


KINDS = {"classic": "Kafka", "native": "Native"}
"""The protocol's group types, in the words of logbus."""
OFFSETS = "Offsets only"
SPARK = "Spark query"
GATHERING = "PreparingRebalance"
"""Without members: those that it had are not heard of yet."""


def _listed(admin: Admin, item: GroupListing) -> dict[str, Any]:
    """Members' state and kind are in the listing; a query tells of itself by its commits alone."""
    state, kind = item.state, KINDS.get(item.kind.lower(), item.kind)
    if kind == "Kafka" and not item.protocol_type:
        kind = OFFSETS
    if kind != "Native" and state == "Empty":
        commits = admin.committed(item.group).values()
        if any(lease_of(row.metadata)[0] for row in commits):
            kind = SPARK
            state = "Running" if holder_of(commits, int(time.time() * 1000))[0] else state
    return {"group": item.group, "state": state, "kind": kind}


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
    states = {item.group: item.state for item in admin.list_groups()}
    if group not in states:
        raise _no_group(group)
    if admin.group_members(group):
        return f"group {group!r} has members that read nothing yet, and has committed nothing"
    if states[group] == GATHERING:
        return _gathering(group)
    return (
        f"group {group!r} is empty: it has no members and has committed nothing in topics that are "
        "there"
    )


def _gathering(group: str) -> str:
    return (
        f"group {group!r} had members when its coordinator went; which of them live shows within "
        "a third of their session timeout: ask again"
    )


def _no_group(group: str) -> GroupIdNotFoundError:
    return GroupIdNotFoundError(f"there is no group {group!r}; see: logbus groups list")


@groups.command()
@click.argument("group")
@cluster_options
@output.output_option
def members(
    group: str, bootstrap_servers: str | None, zookeeper: str | None, form: str | None
) -> None:
    """A group's live members, and which partitions each of them reads."""
    with open_admin(bootstrap_servers, zookeeper) as admin:
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
    "@TIME or @-1h; not before the earliest, not past the latest."
)
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
    place = offset_spec.parse(to)
    with open_admin(bootstrap_servers, zookeeper) as admin:
        facts = found_topic(admin.cluster(), topic)
        if missing := set(partition) - {part.partition for part in facts.partitions}:
            raise click.BadParameter(
                f"{topic} has no partition {min(missing)}", param_hint="--partition"
            )
        ids = {tp: i for tp, i in _ids((facts,)).items() if not partition or tp[1] in partition}
        rows = _move(admin, group, ids, place, yes)
        refusal = None if yes else _refusal(admin, group)
    _show_plan(rows, yes, form, refusal)


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
    place = offset_spec.parse(to)
    with open_admin(bootstrap_servers, zookeeper) as admin:
        names = topics or sorted({where.topic for where in _committed(admin, group)})
        view = admin.cluster()
        ids = _ids(found_topic(view, name) for name in names)
        rows = _move(admin, group, ids, place, yes)
        refusal = None if yes else _refusal(admin, group)
    _show_plan(rows, yes, form, refusal)


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
            if not lost:
                _why_empty(admin, group)
        refusal = None
        if not yes:
            refusal = _refusal(admin, group, topics)
        elif topics:
            admin.delete_offsets(group, lost)
        else:
            admin.delete_group(group)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "committed": lost[tp].offset}
        for tp in sorted(lost)
    ]
    _show_plan(rows, yes, form, refusal)


def _committed(admin: Admin, group: str) -> dict[TopicPartition, CommittedOffset]:
    found = admin.committed(group)
    if not found:
        raise GroupIdNotFoundError(
            f"group {group!r} has committed nothing; see: logbus groups list"
        )
    return found


def _ids(topics: Iterable[TopicMetadata]) -> dict[TopicPartition, str]:
    """All partitions of the topics, and of which topic each is."""
    return {
        TopicPartition(facts.name, part.partition): facts.topic_id
        for facts in topics
        for part in facts.partitions
    }


def _move(
    admin: Admin,
    group: str,
    ids: Mapping[TopicPartition, str],
    place: offset_spec.Moment,
    yes: bool,
) -> list[dict[str, Any]]:
    """What each partition's offset becomes, and is now where ``yes``."""
    chosen = list(ids)
    found = offset_spec.places(admin, chosen, place)
    targets = {tp: at.offset for tp, at in found.items()}
    before = admin.committed(group, chosen)
    if yes:
        _refuse_readers(admin, group)
        admin.commit_offsets(
            group, {tp: CommittedOffset(at, topic_id=ids[tp]) for tp, at in targets.items()}
        )
    for tp, at in found.items():
        if at.wanted != at.offset:
            end = "earliest offset" if at.wanted < at.offset else "end"
            output.say(f"{tp}: {at.wanted} is outside of the log; its {end} {at.offset} is taken")
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "from": before[tp].offset if tp in before else None,
            "to": offset,
        }
        for tp, offset in targets.items()
    ]


def _show_plan(
    rows: list[dict[str, Any]], yes: bool, form: str | None, refusal: LogbusError | None
) -> None:
    """Raises what ``--yes`` would be refused with now: such a plan cannot be carried out."""
    output.show(rows, form)
    if refusal is not None:
        raise type(refusal)(
            f"nothing was changed, and --yes would be refused now: {refusal.message}"
        )
    if not yes:
        output.say("nothing was changed; add --yes to do it")


def _refusal(admin: Admin, group: str, topics: tuple[str, ...] = ()) -> LogbusError | None:
    """What keeps offsets from being moved or deleted now; with ``topics``, from being deleted in
    those, which members of a Kafka group that read others do not hinder."""
    kinds = {row.group: row.kind for row in admin.list_groups()} if topics else {}
    if kinds.get(group) == "Native":
        topics = ()
    try:
        _refuse_readers(admin, group, topics)
        admin.refuse_query(group)
    except (NonEmptyGroupError, GroupLeaseHeldError, GroupSubscribedToTopicError) as error:
        return error
    return None


def _refuse_readers(admin: Admin, group: str, topics: tuple[str, ...] = ()) -> None:
    """Whoever reads as the group commits again soon, and would overwrite what is done here."""
    readers = admin.group_members(group)
    read = {where.topic for owned in readers.values() for where in owned}
    if topics and (common := sorted(read.intersection(topics))):
        raise GroupSubscribedToTopicError(
            f"group {group!r} has live members that read {', '.join(common)}; stop them first"
        )
    # Seeking makes a group that is not there yet, as a first commit does.
    if readers and not topics:
        raise NonEmptyGroupError(f"group {group!r} has live members; stop them first")
