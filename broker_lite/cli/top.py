"""``logbus top``: a self-redrawing terminal view of brokers, topics (by rate) and groups (by
lag)."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from broker_lite.cli import output
from broker_lite.cli.context import bootstrap, cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.client.administration.admin import Admin
from broker_lite.client.administration.health import broker_loads
from broker_lite.observing.reading import ClusterReading, take_reading
from broker_lite.observing.sampler import INTERVAL_S, Sampler

ONCE_S = 1.0
"""Seconds between the two readings of the cluster from which ``--once`` computes rates."""
REDRAW_S = 0.5
"""Seconds between two redraws; a key redraws at once."""
ROWS_MAX = 20
"""Maximum rows of a table on a screen."""
KEYS_MAX = 64
"""Maximum bytes of key presses that one read returns."""
SORTS = {
    "n": "name",
    "r": "records_per_s",
    "s": "size_bytes",
    "l": "lag",
}
"""The column by which the topics are sorted, by the key that the user presses. The key n sorts
groups by name, the other keys by lag."""
PIPE_COLUMNS = 1000
"""Maximum columns of a line that is not printed to a terminal."""
_COLOURS = {"ok": "green", "warning": "yellow", "critical": "red"}


@dataclass(slots=True)
class _View:
    """The user's choices for the tables: the sort column, the text that names must contain, and the
    maximum rows of a table (None: all)."""

    sort: str = "records_per_s"
    text: str = ""
    is_typing: bool = False
    rows_max: int | None = ROWS_MAX

    def press(self, key: str) -> bool:
        """Handle a key; return False if the key ends the program."""
        if self.is_typing:
            if key in "\r\n\x1b":
                self.is_typing = False
                self.text = "" if key == "\x1b" else self.text
            elif key in "\x7f\b":
                self.text = self.text[:-1]
            elif key.isprintable():
                self.text += key
        elif key == "/":
            self.is_typing, self.text = True, ""
        elif key in ("q", "\x03"):
            return False
        else:
            self.sort = SORTS.get(key, self.sort)
        return True


@click.command()
@click.option("--once", is_flag=True, help="Print one view and leave, for a pipe or a log.")
@cluster_options
@output.output_option
def top(once: bool, cluster: ChosenCluster, form: str | None) -> int:
    """Watch brokers, topics by rate and groups by lag.

    Keys: n r s l sort by name, rate, size or lag; / filters by a part of the name; q ends. With
    --once, or with an -o other than table, the command prints one view and ends; csv has only the
    topics.

    \b
    Examples:
      logbus top
      logbus top -b kafka1:9092
      logbus top --once
      logbus top -o json
    """
    servers = bootstrap(cluster)
    with Admin(servers, client_id="logbus-top") as admin:
        is_text = form in (None, "table")
        if once or not is_text or not (sys.stdin.isatty() and sys.stdout.isatty()):
            before = take_reading(admin)
            time.sleep(ONCE_S)
            reading = take_reading(admin, before)
            if is_text:
                width = None if sys.stdout.isatty() else PIPE_COLUMNS
                Console(width=width).print(_tables(reading, _View(rows_max=None), 0.0, ""))
            elif form == "csv":
                output.show(_topic_rows(reading), form)
            else:
                output.show_one(_facts(reading), form)
            return 0
        _watch(Sampler(admin).start())
    return 0


def _watch(sampler: Sampler) -> None:
    view = _View()
    try:
        with _keys(), Live(Text("looking …"), screen=True, auto_refresh=False) as live:
            while True:
                reading = sampler.reading
                shown: RenderableType = Text(sampler.failure or "looking …")
                if reading is not None:
                    shown = _tables(reading, view, sampler.age_s, sampler.failure)
                live.update(shown, refresh=True)
                if not all(view.press(key) for key in _pressed()):
                    return
    finally:
        sampler.stop()


def _pressed() -> str:
    """Return the keys that the user pressed, after a wait of at most ``REDRAW_S`` seconds.

    Reads the file descriptor directly, because ``sys.stdin`` would buffer keys that ``select`` then
    no longer sees."""
    descriptor = sys.stdin.fileno()
    if not select.select([descriptor], [], [], REDRAW_S)[0]:
        return ""
    return os.read(descriptor, KEYS_MAX).decode(errors="ignore")


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Switch the terminal, for the block, to the mode in which keys arrive one by one and are not
    echoed."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _tables(reading: ClusterReading, view: _View, age_s: float, failure: str) -> RenderableType:
    """Return the whole screen as text."""
    head = Text()
    head.append(f" {reading.state} ", style=f"bold reverse {_COLOURS[reading.state]}")
    head.append(
        f"  {len(reading.sample.view.brokers)} brokers, controller "
        f"{reading.sample.view.controller_id}   {reading.records_per_s:,.0f} records/s   "
        f"{output.size(reading.size_bytes)}   lag {reading.lag:,}   "
    )
    head.append(f"{age_s:.0f} s old", style="red" if age_s > 3 * INTERVAL_S else "dim")
    rows: list[RenderableType] = [head]
    if failure:
        rows.append(Text(f"no answer: {failure}", style="red"))
    rows += [
        Text(f"{cause.about}: {cause.found} – {cause.cure}", style=_COLOURS[cause.state])
        for cause in reading.causes[:5]
    ]
    for table in (_brokers(reading), _topics(reading, view), _groups(reading, view)):
        table.expand = view.rows_max is not None
        rows.append(table)
    if view.rows_max is not None:
        label = f"filter: {view.text}{'_' if view.is_typing else ''}   " if view.text else ""
        rows.append(Text(f"{label}sort n r s l · filter / · end q", style="dim"))
    return Group(*rows)


def _facts(reading: ClusterReading) -> dict[str, Any]:
    return {
        "state": reading.state,
        "controller": reading.sample.view.controller_id,
        "records_per_s": reading.records_per_s,
        "size_bytes": reading.size_bytes,
        "lag": reading.lag,
        "causes": [cause._asdict() for cause in reading.causes],
        "brokers": _broker_rows(reading),
        "topics": _topic_rows(reading),
        "groups": [row._asdict() for row in reading.groups.values()],
    }


def _topic_rows(reading: ClusterReading) -> list[dict[str, Any]]:
    return [row._asdict() for row in reading.topics.values()]


def _broker_rows(reading: ClusterReading) -> list[dict[str, Any]]:
    disks = {row.broker_id: row for row in reading.sample.log_dirs}
    rows = []
    for broker_id, load in broker_loads(reading.sample.view).items():
        disk = disks.get(broker_id)
        is_known = disk is not None and disk.total_bytes > 0
        rows.append(
            {
                "id": broker_id,
                "running": broker_id in reading.sample.view.brokers,
                **load._asdict(),
                "size_bytes": sum(disk.partitions.values()) if disk is not None else None,
                "free_bytes": disk.usable_bytes if disk is not None and is_known else None,
                "total_bytes": disk.total_bytes if disk is not None and is_known else None,
            }
        )
    return rows


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _brokers(reading: ClusterReading) -> Table:
    table = _table("Brokers", "broker", "leaders", "replicas", "in sync", "data", "disk free")
    for row in _broker_rows(reading):
        total = row["total_bytes"]
        table.add_row(
            f"{row['id']}" if row["running"] else f"{row['id']} down",
            str(row["leaders"]),
            str(row["replicas"]),
            str(row["in_sync"]),
            output.size(row["size_bytes"]),
            f"{row['free_bytes'] / total:.0%}" if total else "-",
        )
    return table


def _topics(reading: ClusterReading, view: _View) -> Table:
    table = _table("Topics", "topic", "partitions", "records", "records/s", "size", "lag", "health")
    rows = [row for row in reading.topics.values() if view.text in row.name]
    if view.sort == "name":
        rows.sort(key=lambda row: row.name)
    else:
        rows.sort(key=lambda row: getattr(row, view.sort) or 0, reverse=True)
    for row in rows[: view.rows_max]:
        table.add_row(
            # In a str, rich would read brackets as markup.
            Text(output.printable(row.name)),
            str(row.partitions),
            f"{row.records:,}",
            f"{row.records_per_s:,.0f}",
            output.size(row.size_bytes),
            "-" if row.lag is None else f"{row.lag:,}",
            "ok" if not row.unhealthy else Text(f"{row.unhealthy} not ok", style="red"),
        )
    return table


def _groups(reading: ClusterReading, view: _View) -> Table:
    table = _table("Groups", "group", "kind", "state", "members", "lag", "behind")
    rows = [row for row in reading.groups.values() if view.text in row.name]
    if view.sort == "name":
        rows.sort(key=lambda row: row.name)
    else:
        rows.sort(key=lambda row: row.lag or 0, reverse=True)
    for row in rows[: view.rows_max]:
        table.add_row(
            # In a str, rich would read brackets as markup.
            Text(output.printable(row.name)),
            row.kind,
            row.state,
            str(row.members),
            "?" if row.lag is None else f"{row.lag:,}",
            "?" if row.lag_s is None else f"{row.lag_s:,.0f} s",
        )
    return table
