"""``logbus topic reassign`` and ``logbus topic elect``: move replicas and leadership."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options
from broker_lite.cli.completion import TOPIC
from broker_lite.cli.context import chosen_partitions, cluster_options, found_topic, open_admin
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.numbers import Real, Whole
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
"""Seconds between two requests with which --wait finds out whether the moves have ended."""


@click.command()
@click.argument("names", nargs=-1, type=TOPIC)
@click.option(
    "-P", "--partition", "partitions", multiple=True, type=int, help="Only these partitions."
)
@click.option(
    "--replicas", metavar="ID,ID…", help="Brokers to use; the preferred leader rotates among them."
)
@click.option("-r", "--replication-factor", type=int, help="New number of replicas.")
@click.option("--off", type=int, metavar="ID", help="Move all replicas off this broker.")
@click.option(
    "--plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Move to the replicas in a file: {"partitions": [{"topic", "partition", "replicas"}]}.',
)
@click.option("--cancel", is_flag=True, help="Cancel the moves in progress.")
@click.option(
    "--wait", "seconds", type=Real(min=0), help="Wait at most this many seconds for the moves."
)
@click.option(
    "--throttle",
    "rate",
    type=Whole(min=0),
    metavar="BYTES/s",
    help="Maximum bytes per second and broker; needs --wait. 0 alone: remove all throttles.",
)
@change_options
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
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Move partitions to other brokers; without an option, show the moves in progress.

    The command prints the replicas of each partition before and after, and asks before it moves
    them.

    \b
    Examples:
      logbus topic reassign
      logbus topic reassign events --replicas 0,1,2 --dry-run
      logbus topic reassign --off 2 --wait 600 --yes
      logbus topic reassign --plan moves.json --throttle 10000000 --wait 600
    """
    ways = [replicas, replication_factor, off, plan, cancel or None]
    if sum(way is not None for way in ways) > 1:
        raise click.UsageError(
            "give one of --replicas, --replication-factor, --off, --plan, --cancel"
        )
    moves_replicas = any(way is not None for way in ways) and not cancel
    if rate is not None and bool(rate) != moves_replicas:
        raise click.UsageError(
            "--throttle takes a rate above 0 if replicas are moved, else 0 (no limit)"
        )
    if rate and seconds is None:
        raise click.UsageError(
            "--throttle needs --wait: the command removes the throttle when the moves have ended"
        )
    with open_admin(cluster) as admin:
        view = admin.cluster()
        ongoing = admin.reassignments()
        tps = _tps(view, names, partitions)
        if rate == 0:
            if change.is_wanted():
                throttled_moves.unthrottle(admin, {tp.topic for tp in tps})
                output.say("removed all throttles")
            return
        if not moves_replicas:
            shown = [tp for tp in tps if tp in ongoing]
            output.show([_move(tp, ongoing[tp]) for tp in shown], form)
            if not shown:
                output.say("no moves in progress")
            elif cancel and change.is_wanted():
                admin.reassign(dict.fromkeys(shown))
            return
        if off is None and plan is None and not names:
            raise click.UsageError("name the topics whose partitions to move")
        moves = _planner(replicas, replication_factor, off, plan)(view, ongoing, tps)
        output.show([_step(view, ongoing, tp, row) for tp, row in moves.items()], form)
        if not moves:
            output.say("nothing to move: the replicas are already where the plan puts them")
        elif change.is_wanted(f"Move the replicas of {_partitions(len(moves))}?"):
            _carry_out(admin, view, ongoing, moves, rate=rate, seconds=seconds)


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _carry_out(
    admin: Admin,
    view: ClusterView,
    ongoing: Ongoing,
    moves: Plan,
    *,
    rate: int | None,
    seconds: float | None,
) -> None:
    """Start the moves, throttled to ``rate`` bytes a second unless None. With ``seconds``, wait at
    most this long until the moves have ended, then remove the throttle."""
    try:
        if rate:
            throttled_moves.throttle(admin, view, ongoing, moves, rate)
        admin.reassign(moves)
        if seconds is not None:
            _wait(admin, moves, seconds)
        if rate:
            throttled_moves.unthrottle(admin, {tp.topic for tp in moves})
    except BaseException:  # ``Exception`` would not match Ctrl-C (KeyboardInterrupt).
        if rate:
            output.say(
                "the throttle stays set. After the moves, remove it with: logbus topic reassign "
                "--throttle 0"
            )
        raise


@click.command()
@click.argument("names", nargs=-1, type=TOPIC)
@click.option(
    "-P", "--partition", "partitions", multiple=True, type=int, help="Only these partitions."
)
@click.option(
    "--unclean",
    is_flag=True,
    help="If no in-sync replica is alive, elect another one. Records that it lacks are lost.",
)
@change_options
@cluster_options
@output.output_option
def elect(
    names: tuple[str, ...],
    partitions: tuple[int, ...],
    unclean: bool,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> int:
    """Make the preferred replicas of the topics NAMES leaders again. Default: all topics.

    \b
    Examples:
      logbus topic elect --dry-run
      logbus topic elect events -P 0
      logbus topic elect events -P 0 --unclean --yes
    """
    if unclean and not names:
        raise click.UsageError("--unclean may lose records: name the topics")
    with open_admin(cluster) as admin:
        view = admin.cluster()
        tps = _tps(view, names, partitions) if names or partitions else None
        if unclean or change.dry_run:
            ongoing = admin.reassignments()
            planned = replica_plans.elections(
                view, ongoing, tps or _tps(view, (), ()), unclean=unclean
            )
            _show_elections(planned, form, dry_run=change.dry_run)
        question = "Records that the new leaders lack are lost. Go on?" if unclean else ""
        if not change.is_wanted(question):
            return 0
        outcomes = admin.elect_leaders(tps, unclean=unclean)
        view = admin.cluster()
    rows = []
    for tp, error in outcomes.items():
        partition = view.partition(tp)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "leader": None if partition is None or partition.leader < 0 else partition.leader,
                "elected": error is None,
                "why": None if error is None else error.message,
            }
        )
    output.show(rows, form)
    if not rows:
        output.say("nothing to elect: each preferred replica leads, or is not in sync")
    needed = [e for e in outcomes.values() if e and not isinstance(e, ElectionNotNeededError)]
    return 1 if needed else 0


def _show_elections(
    planned: dict[TopicPartition, replica_plans.Election], form: str | None, *, dry_run: bool
) -> None:
    """Print planned elections: as rows for a dry run, else as sentences on stderr, before the user
    is asked to confirm."""
    if dry_run:
        rows = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "from": each.leader,
                "to": each.leader if each.elected is None else each.elected,
                "why": each.why,
            }
            for tp, each in planned.items()
        ]
        output.show(rows, form)
        return
    for tp, each in planned.items():
        output.say(f"{tp}: {each.why or f'broker {each.elected} becomes leader'}")


def _tps(
    view: ClusterView, names: tuple[str, ...], partitions: tuple[int, ...]
) -> list[TopicPartition]:
    if partitions and not names:
        raise click.UsageError("--partition needs a topic's name")
    found: list[TopicPartition] = []
    for name in names or sorted(view.topics):
        found += chosen_partitions(found_topic(view, name), partitions)
    return found


def _planner(
    replicas: str | None, factor: int | None, off: int | None, path: Path | None
) -> Planner:
    """Return a function that plans replica moves by the first argument that is not None.

    The arguments are brokers to use, a replication factor, a broker to clear of replicas, and a
    plan file. Raises click.BadParameter if ``replicas`` or the plan file is malformed."""
    if replicas is not None:
        return partial(replica_plans.to_brokers, brokers=_ids(replicas))
    if factor is not None:
        return partial(replica_plans.to_factor, factor=factor)
    if off is not None:
        return partial(replica_plans.off_broker, broker_id=off)
    assert path is not None
    planned = _read_plan(path)
    return lambda view, ongoing, tps: planned


def _read_plan(path: Path) -> Plan:
    try:
        return replica_plans.from_text(path.read_text("utf-8"))
    except (InvalidReplicaAssignmentError, UnicodeDecodeError) as error:
        raise click.BadParameter(
            f"{path} cannot be used as a plan: {error}", param_hint="--plan"
        ) from None


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: give ids as 1,2,3", param_hint="--replicas") from None


def _step(
    view: ClusterView,
    ongoing: dict[TopicPartition, Reassignment],
    tp: TopicPartition,
    row: tuple[int, ...],
) -> dict[str, Any]:
    partition = view.partition(tp)
    present = () if partition is None else replica_plans.target(partition, ongoing.get(tp))
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "from": list(present),
        "to": list(row),
    }


def _move(tp: TopicPartition, move: Reassignment) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "replicas": list(move.replicas),
        "adding": list(move.adding),
        "removing": list(move.removing),
    }


def _wait(admin: Admin, moves: Plan, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    with output.ProgressBar("partitions moved", is_alone=True) as bar:
        bar.reach(len(moves))
        while left := [tp for tp in admin.reassignments() if tp in moves]:
            bar.reach(len(left))
            if time.monotonic() >= deadline:
                raise RequestTimedOutError(
                    f"after {seconds:g} s, {len(left)} of {len(moves)} partitions are still being "
                    f"moved: {', '.join(map(str, left[:5]))}. The moves continue; list them with "
                    "'logbus topic reassign'"
                )
            time.sleep(POLL_SECONDS)
        bar.reach(0)
    output.say("all partitions are moved")
