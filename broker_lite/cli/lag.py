"""``logbus lag``: show how many records groups have not read yet, and the age of the oldest of
them. The exit code serves monitoring checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.completion import GROUP, TOPIC
from broker_lite.cli.context import cluster_options, found_topic, open_admin
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.main import EXIT_CRITICAL, EXIT_WARNING
from broker_lite.cli.numbers import Real
from broker_lite.cli.progress import group_progress, uncounted
from broker_lite.config import nearest
from broker_lite.errors import GroupIdNotFoundError, LogbusError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin


@click.command()
@click.option(
    "-g", "--group", "wanted", type=GROUP, multiple=True, help="Only these groups. Default: all."
)
@click.option(
    "-t", "--topic", "topics", type=TOPIC, multiple=True, help="Only these topics. Default: all."
)
@click.option("--by-partition", is_flag=True, help="One row per partition, not per topic.")
@click.option("-w", "--watch", is_flag=True, help="Print again every --interval until Ctrl-C.")
@click.option(
    "--interval",
    type=Real(min=0),
    default=2.0,
    show_default=True,
    help="Seconds between two prints.",
)
@click.option("--warn", type=int, help="Exit code 4 if a group's lag in a topic is over this.")
@click.option("--crit", type=int, help="Exit code 5 if a group's lag in a topic is over this.")
@click.option(
    "--warn-s", type=Real(min=0), help="Exit code 4 if a group's lag in seconds is over this."
)
@click.option(
    "--crit-s", type=Real(min=0), help="Exit code 5 if a group's lag in seconds is over this."
)
@cluster_options
@output.output_option
def lag(
    wanted: tuple[str, ...],
    topics: tuple[str, ...],
    by_partition: bool,
    watch: bool,
    interval: float,
    warn: int | None,
    crit: int | None,
    warn_s: float | None,
    crit_s: float | None,
    cluster: ChosenCluster,
    form: str | None,
) -> int:
    """Show how far groups and Spark queries are behind the ends of their topics.

    LAG counts unread records; LAG S is the age in seconds of the oldest of them. If a member reads
    a partition for which the group has no committed offset, both count from the log start offset. A
    named group or topic that does not exist is an error (exit code 1); --watch waits for it.

    An unknown lag exceeds every --warn and --crit limit. The lag is unknown if a partition has no
    leader or a named group has no partitions. The lag in seconds is unknown for a record without a
    timestamp.

    \b
    Examples:
      logbus lag
      logbus lag -g readers --by-partition --watch
      logbus lag -g readers --warn-s 60 --crit-s 300
    """
    printed: set[str] = set()
    limits = {"lag": (warn, crit), "lag_s": (warn_s, crit_s)}

    def show(admin: Admin) -> list[dict[str, Any]]:
        for error in _missing(admin, wanted, topics):
            if not watch:
                raise error
            _print_once(f"{error}; waiting for it", printed)
        rows = _rows(admin, wanted, topics)
        totals = _by_topic(rows)
        output.show(rows if by_partition else totals, form)
        if not rows and not wanted:
            _print_once("no group has committed offsets", printed)
        for text in sorted(unknown(rows, wanted, limits)):
            _print_once(text, printed)
        return totals

    with open_admin(cluster) as admin:
        while watch:
            try:
                show(admin)
            except LogbusError as error:
                _print_once(f"{error}; looking again", printed)
            time.sleep(interval)
        totals = show(admin)
    for text in over(totals, limits):
        _print_once(text, printed)
    return verdict(totals, wanted, limits)


def _print_once(text: str, printed: set[str]) -> None:
    if text not in printed:
        printed.add(text)
        output.say(text)


Limits = Mapping[str, tuple[float | None, float | None]]
"""The warning limit and the critical limit by column (``lag``, ``lag_s``); None: no limit."""


def verdict(totals: list[dict[str, Any]], wanted: tuple[str, ...], limits: Limits) -> int:
    """Return the exit code of the check against ``limits``: 0, EXIT_WARNING or EXIT_CRITICAL. An
    unknown lag, such as that of a partition without a leader, counts as over every given limit."""
    missing = set(wanted) - {row["group"] for row in totals}
    for level, code in ((1, EXIT_CRITICAL), (0, EXIT_WARNING)):
        for column, pair in limits.items():
            limit = pair[level]
            if limit is None:
                continue
            values = [row[column] for row in totals]
            if missing or any(value is None or value > limit for value in values):
                return code
    return 0


def over(totals: list[dict[str, Any]], limits: Limits) -> Iterator[str]:
    """Yield a sentence for each lag above a limit. If a lag is above both limits, the sentence
    names only the critical one."""
    for row in totals:
        for column, pair in limits.items():
            for limit, name in ((pair[1], "--crit"), (pair[0], "--warn")):
                if limit is None or row[column] is None or row[column] <= limit:
                    continue
                option = f"{name}-s" if column == "lag_s" else name
                much = f"{row[column]} " + ("s" if column == "lag_s" else "records")
                where = f"group {row['group']!r} in {row['topic']!r}"
                yield f"{where}: a lag of {much} is over {option} {limit:g}"
                break


def unknown(rows: list[dict[str, Any]], wanted: tuple[str, ...], limits: Limits) -> Iterator[str]:
    """Yield a sentence for each unknown lag, because it counts as above every limit."""
    yield from uncounted(rows)
    columns = [column for column, pair in limits.items() if pair != (None, None)]
    for group in set(wanted) - {row["group"] for row in rows} if columns else ():
        yield f"group {group!r}: its lag is unknown: it has no commits and no reading members"
    for row in rows if "lag_s" in columns else ():
        if row["lag"] is not None and row["lag_s"] is None:
            where = f"group {row['group']!r}: the lag in {row['topic']}-{row['partition']}"
            yield f"{where} is not known in seconds: its first unread record has no timestamp"


def _missing(
    admin: Admin, wanted: tuple[str, ...], topics: tuple[str, ...]
) -> Iterator[LogbusError]:
    """Yield an error for each named group or topic that does not exist."""
    if wanted:
        known = [item.group for item in admin.list_groups()]
        for group in wanted:
            if group not in known:
                near = nearest(group, known) or "; see: logbus groups list"
                yield GroupIdNotFoundError(f"there is no group {group!r}{near}")
    if topics:
        view = admin.cluster()
        for topic in topics:
            try:
                found_topic(view, topic, creates=False)
            except UnknownTopicOrPartitionError as error:
                yield error


def _rows(admin: Admin, wanted: tuple[str, ...], topics: tuple[str, ...]) -> list[dict[str, Any]]:
    groups = wanted or sorted(item.group for item in admin.list_groups())
    return [
        row
        for group in groups
        for row in group_progress(admin, group)
        if not topics or row["topic"] in topics
    ]


def _by_topic(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the partitions of each group and topic: sum the lags in records, and take the longest
    lag in seconds."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        parts.setdefault((row["group"], row["topic"]), []).append(row)
    return [
        {
            "group": group,
            "topic": topic,
            "partitions": len(of_topic),
            "lag": _all(sum, [row["lag"] for row in of_topic]),
            "lag_s": _all(max, [row["lag_s"] for row in of_topic]),
        }
        for (group, topic), of_topic in parts.items()
    ]


def _all(join: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """Return ``join(values)``, or None if any value is None (an unknown lag)."""
    return None if None in values else join(values)
