"""``logbus topic reassign`` and ``logbus topic elect``: move replicas and leadership."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.completion import TOPIC
from broker_lite.cli.context import cluster_options, found_topic, open_admin
from broker_lite.client.administration import replica_plans, throttled_moves
from broker_lite.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    RequestTimedOutError,
)
from broker_lite.model import TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.administration.replica_plans import Ongoing, Plan
    from broker_lite.client.administration.replica_requests import Reassignment
    from broker_lite.client.operations.cluster import ClusterView

    Planner = Callable[[ClusterView, Ongoing, list[TopicPartition]], Plan]

POLL_SECONDS = 0.2


@click.command()
@click.argument("names", nargs=-1, type=TOPIC)
@click.option("-P", "--partition", "partitions", multiple=True, type=int, help="Only this one.")
@click.option("--replicas", metavar="ID,ID…", help="Brokers to use; they take turns as leaders.")
@click.option("-r", "--replication-factor", type=int, help="New number of replicas.")
@click.option("--off", type=int, metavar="ID", help="Move all replicas off this broker.")
@click.option(
    "--plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='To what a file says: {"partitions": [{"topic", "partition", "replicas"}]}.',
)
@click.option("--cancel", is_flag=True, help="Cancel the moves in progress.")
@click.option(
    "--wait", "seconds", type=click.FloatRange(min=0), help="Wait so many seconds for the end."
)
@click.option(
    "--throttle",
    "rate",
    type=click.IntRange(min=0),
    metavar="BYTES/s",
    help="Copy at most this much a second and broker; needs --wait. 0 alone: remove all throttles.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
@cluster_options
@output.output_option
def reassign(
    names: tuple[str, ...],
    partitions: tuple[int, ...],
    replicas: str | None,
    replication_factor: int | None,
    off: int | None,
    plan: Path | None,
    cancel: bool,
    seconds: float | None,
    rate: int | None,
    dry_run: bool,
    bootstrap_servers: str | None,
    zookeeper: str | None,
    form: str | None,
) -> None:
    """Move partitions to other brokers; without an option, show the moves in progress."""
    ways = [replicas, replication_factor, off, plan, cancel or None]
    if sum(way is not None for way in ways) > 1:
        raise click.UsageError(
            "give one of --replicas, --replication-factor, --off, --plan, --cancel"
        )
    moves_replicas = any(way is not None for way in ways) and not cancel
    if rate is not None and bool(rate) != moves_replicas:
        raise click.UsageError("--throttle: give a rate above 0 with a move, or 0 without one")
    if rate and seconds is None:
        raise click.UsageError("--throttle needs --wait: the end of the moves removes the throttle")
    with open_admin(bootstrap_servers, zookeeper) as admin:
        view = admin.cluster()
        ongoing = admin.reassignments()
        wheres = _wheres(view, names, partitions)
        if rate == 0:
            throttled_moves.unthrottle(admin, {where.topic for where in wheres})
            output.say("removed all throttles")
            return
        if all(way is None for way in ways):
            shown = {where: move for where, move in ongoing.items() if where in wheres}
            output.show([_move(where, move) for where, move in shown.items()], form)
            if not shown:
                output.say("no moves in progress")
            return
        if cancel:
            back = [where for where in wheres if where in ongoing]
            if not dry_run:
                admin.reassign(dict.fromkeys(back))
            output.show([_move(where, ongoing[where]) for where in back], form)
            return
        if off is None and plan is None and not names:
            raise click.UsageError("name the topics to move")
        moves = _planner(replicas, replication_factor, off, plan)(view, ongoing, wheres)
        if not dry_run:
            if rate and moves:
                throttled_moves.throttle(admin, view, ongoing, moves, rate)
            admin.reassign(moves)
        output.show([_step(view, ongoing, where, row) for where, row in moves.items()], form)
        if not moves:
            output.say("nothing to move")
        if seconds is not None and not dry_run:
            _wait(admin, moves, seconds)
            if rate and moves:
                throttled_moves.unthrottle(admin, {where.topic for where in moves})


@click.command()
@click.argument("names", nargs=-1, type=TOPIC)
@click.option("-P", "--partition", "partitions", multiple=True, type=int, help="Only this one.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Where none that has all records lives: let another one lead. What it lacks is lost.",
)
@click.option("--yes", is_flag=True, help="Do it without asking.")
@cluster_options
@output.output_option
def elect(
    names: tuple[str, ...],
    partitions: tuple[int, ...],
    unclean: bool,
    yes: bool,
    bootstrap_servers: str | None,
    zookeeper: str | None,
    form: str | None,
) -> int:
    """Make the preferred replicas leaders again: of these topics, or of all."""
    if unclean and not names:
        raise click.UsageError("--unclean loses records: name the topics")
    with open_admin(bootstrap_servers, zookeeper) as admin:
        wheres = _wheres(admin.cluster(), names, partitions) if names or partitions else None
        if unclean and not yes:
            click.confirm(
                "Records that the new leaders lack are lost. Go on?", abort=True, err=True
            )
        outcomes = admin.elect_leaders(wheres, unclean=unclean)
        view = admin.cluster()
    rows = []
    for where, error in outcomes.items():
        partition = view.partition(where)
        rows.append(
            {
                "topic": where.topic,
                "partition": where.partition,
                "leader": None if partition is None or partition.leader < 0 else partition.leader,
                "elected": error is None,
                "why": None if error is None else error.message,
            }
        )
    output.show(rows, form)
    if not rows:
        output.say("every partition is led by its preferred replica, or that is not in sync")
    needed = [e for e in outcomes.values() if e and not isinstance(e, ElectionNotNeededError)]
    return 1 if needed else 0


def _wheres(
    view: ClusterView, names: tuple[str, ...], partitions: tuple[int, ...]
) -> list[TopicPartition]:
    if partitions and not names:
        raise click.UsageError("--partition needs a topic's name")
    found = []
    for name in names or sorted(view.topics):
        topic = found_topic(view, name)
        for partition in topic.partitions:
            if not partitions or partition.partition in partitions:
                found.append(TopicPartition(name, partition.partition))
        there = {partition.partition for partition in topic.partitions}
        for number in partitions:
            if number not in there:
                raise click.BadParameter(
                    f"topic {name!r} has partitions 0 to {len(there) - 1}, not {number}",
                    param_hint="--partition",
                )
    return found


def _planner(
    replicas: str | None, factor: int | None, off: int | None, path: Path | None
) -> Planner:
    """Return the one kind of move that the options name."""
    if replicas is not None:
        return partial(replica_plans.to_brokers, brokers=_ids(replicas))
    if factor is not None:
        return partial(replica_plans.to_factor, factor=factor)
    if off is not None:
        return partial(replica_plans.off_broker, broker_id=off)
    assert path is not None
    planned = _read_plan(path)
    return lambda view, ongoing, wheres: planned


def _read_plan(path: Path) -> Plan:
    try:
        return replica_plans.from_text(path.read_text("utf-8"))
    except (InvalidReplicaAssignmentError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--plan") from None


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: give ids as 1,2,3", param_hint="--replicas") from None


def _step(
    view: ClusterView,
    ongoing: dict[TopicPartition, Reassignment],
    where: TopicPartition,
    row: tuple[int, ...],
) -> dict[str, Any]:
    partition = view.partition(where)
    present = () if partition is None else replica_plans.target(partition, ongoing.get(where))
    return {
        "topic": where.topic,
        "partition": where.partition,
        "from": list(present),
        "to": list(row),
    }


def _move(where: TopicPartition, move: Reassignment) -> dict[str, Any]:
    return {
        "topic": where.topic,
        "partition": where.partition,
        "replicas": list(move.replicas),
        "adding": list(move.adding),
        "removing": list(move.removing),
    }


def _wait(admin: Admin, moves: Plan, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [where for where in admin.reassignments() if where in moves]:
        if time.monotonic() >= deadline:
            raise RequestTimedOutError(
                f"{len(left)} of {len(moves)} partitions are still on their way: "
                f"{', '.join(map(str, left[:5]))}; logbus topic reassign shows them. A throttle "
                "stays until logbus topic reassign --throttle 0"
            )
        time.sleep(POLL_SECONDS)
    output.say("done")
