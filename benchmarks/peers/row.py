"""Rows of the comparison: the work that both sides do, and its goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peers.bench import Bench

LOGBUS, KAFKA = "logbus", "kafka"
FLOOR = "floor"
"""The name of a side that does only the necessary work, for instance with free reads or writes. It
is not a system and has no ratio; the report shows it beside a missed goal."""
ROUNDS = 5
"""Runs of each side after its first run, which is stored separately."""

Measures = dict[str, float]
"""The measures of one run by name; the suffix is the unit: ``_per_s``, ``_ms``, ``_s``, ``_mb``."""
Processes = dict[str, dict[str, float]]
"""The cost of a run by role: ``cpu_s`` and ``peak_mb``."""


def is_floor(side: str) -> bool:
    """Return whether a side is a floor: ``floor``, or ``floor, …`` if a row has several."""
    return side.partition(",")[0] == FLOOR


@dataclass(frozen=True)
class Goal:
    """A limit of the ratio logbus / peer of a measure: at least or at most ``limit``.

    ``limit`` None only shows the ratio. ``variant`` restricts the goal to that variant; "" means
    each.
    """

    measure: str
    limit: float | None
    better: str = "more"
    variant: str = ""
    of: str = "runs"
    """``runs``: compare the medians. ``first``: compare the first run of each side."""

    def __post_init__(self) -> None:
        assert self.better in ("more", "less") and self.of in ("runs", "first")

    @property
    def text(self) -> str:
        if self.limit is None:
            return "none"
        return f"{'≥' if self.better == 'more' else '≤'} {self.limit:g}"

    def is_met(self, ratio: float) -> bool | None:
        """Return whether the goal is met; None without a limit."""
        if self.limit is None:
            return None
        return ratio >= self.limit if self.better == "more" else ratio <= self.limit


@dataclass(frozen=True)
class Variant:
    """Settings with which both sides run. ``settings`` describes them for the table;
    ``compression`` maps a side to its codec."""

    name: str = "defaults"
    settings: Mapping[str, str] = field(default_factory=dict)
    compression: Mapping[str, str] = field(default_factory=lambda: {LOGBUS: "none", KAFKA: "none"})


@dataclass(frozen=True)
class Side:
    """One side of a variant.

    * ``run``: does the work once and returns its measures.
    * ``servers``: returns pids by role (``broker``, ``zookeeper``, …) before each run; every
      other child process is a client.
    * ``settings``: describes its servers' settings.
    * ``within``: returns the living servers that a run itself starts, by role.
    * ``cannot``: the reason why this side is missing; the others run.
    """

    run: Callable[[], Measures]
    servers: Callable[[], Mapping[str, list[int]]] = dict
    settings: str = ""
    within: Callable[[], Mapping[str, list[int]]] = dict
    cannot: str = ""


def missing(why: object) -> Side:
    """Return a side that cannot run here."""

    def run() -> Measures:
        raise AssertionError("it is not run")

    return Side(run, cannot=str(why))


@dataclass(frozen=True)
class Row:
    """A row of the table.

    * ``name``: the result's file and the value of ``ONLY=``; ``number``: its place.
    * ``open``: prepares a variant (servers, topics, input) and yields both sides by name.
      Raises fetch.Cannot if the row cannot run here.
    * ``note``: what a reader must know about the row.
    * ``bound``: the measured limit of the row, for the report of a missed goal.
    * ``ceiling``: returns the ratio of a logbus without cost in a measure, for a stored variant
      without a floor; None if it is unknown.
    * ``derive``: computes measures from a run's measures and cost.
    * ``quick``: whether ``--quick`` runs it.
    * ``rounds``: 1 for results that never vary.
    * ``seconds_max``: the time after which a variant has failed.
    * ``apart``: each side is independent: one that fails or exceeds ``seconds_max`` is left
      out, and the others continue.
    """

    name: str
    number: int
    work: str
    goals: tuple[Goal, ...]
    open: Callable[[Bench, Variant], AbstractContextManager[Mapping[str, Side]]]
    variants: tuple[Variant, ...] = (Variant(),)
    note: str = ""
    bound: str = ""
    quick: bool = True
    rounds: int = ROUNDS
    seconds_max: float = 600.0
    apart: bool = False
    ceiling: Callable[[Mapping[str, Any], str], float | None] = field(default=lambda *_: None)
    derive: Callable[[Measures, Processes], Measures] = field(default=lambda *_: {})
