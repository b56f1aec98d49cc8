"""What the growth rows conclude of their figures: sentences that are drawn from a result.

``concludes`` of the rows in ``peers.rows.growth``; called by ``peers.report``. None says anything
of a result with one size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from peers.meter import CLIENTS

Found = Mapping[str, Any]


class Grown:
    """A growth row's medians, smallest size first."""

    def __init__(self, found: Found, sizes: Mapping[str, int]) -> None:
        """``sizes``: what a size is called in the result, and how much it is."""
        self._sides = {
            sizes[name]: (name, side)
            for variant in found["variants"]
            for name, side in variant.get("sides", {}).items()
        }
        self.sizes = sorted(self._sides)

    def spent(self, size: int, role: str) -> float:
        """Processor seconds."""
        return float(self._sides[size][1]["processes"][role]["cpu_s"])

    def at(self, size: int, measure: str) -> float:
        return float(self._sides[size][1]["median"][measure])

    def name(self, size: int) -> str:
        return str(self._sides[size][0])

    @property
    def range(self) -> str:
        return f"From {self.name(self.sizes[0])} to {self.name(self.sizes[-1])}"

    def more(self, measure: str) -> float:
        """The difference of the largest and the smallest."""
        return self.at(self.sizes[-1], measure) - self.at(self.sizes[0], measure)

    def times(self, measure: str) -> float:
        return self.at(self.sizes[-1], measure) / self.at(self.sizes[0], measure)

    def a_unit(self, measure: str) -> float:
        """How much the largest has more than the smallest, for each that it is larger."""
        return self.more(measure) / (self.sizes[-1] - self.sizes[0])


Concluding = Callable[[Grown], str]


def concluding(sizes: Mapping[str, int], conclude: Concluding) -> Callable[[Found], str]:
    """A row's ``concludes``: nothing of sizes that the row has no more, or of one alone."""

    def concludes(found: Found) -> str:
        names = {name for each in found["variants"] for name in each.get("sides", {})}
        return conclude(Grown(found, sizes)) if len(names) > 1 and names <= set(sizes) else ""

    return concludes


def nothing(_: Grown) -> str:
    return ""


def partitions(grown: Grown) -> str:
    create, stop, kill = (
        grown.a_unit(each) * 1000
        for each in ("create_topic_s", "restart_s", "restart_after_kill_s")
    )
    return (
        f"{grown.range} idling takes {grown.times('idle_broker_percent'):.1f} times as much; each "
        f"partition more costs {create:.2g} ms when it is made, {stop:.2g} ms of a restart and "
        f"{kill:.2g} ms after kill -9"
    )


def log_size(grown: Grown) -> str:
    return (
        f"{grown.range} reading makes {grown.times('read_mb_per_s'):.1f} times as much, a seek "
        f"takes {grown.times('seek_p50_ms'):.1f} times as long and the lookup of a time "
        f"{grown.times('offset_of_time_p50_ms'):.1f} times; a restart takes "
        f"{grown.more('restart_s'):.2g} s longer, after kill -9 "
        f"{grown.more('restart_after_kill_s'):.2g} s, and the longest write during retention "
        f"{grown.more('write_during_retention_max_ms'):.2g} ms"
    )


def sessions(grown: Grown) -> str:
    """A result of before, whose first size had more to it, says so: one session is no dearer for
    this process than ten."""
    first, second = (grown.spent(size, CLIENTS) for size in grown.sizes[:2])
    if first < 3 * second:
        return ""
    return (
        f"What the clients of the first size took, {first:.0f} s, has what the servers of the row "
        "before had taken in their lives among it: they were ended within it, and now are before it"
    )


def members(grown: Grown) -> str:
    largest = grown.sizes[-1]
    heartbeats = ", ".join(
        f"{grown.at(size, 'broker_percent') * 10 / grown.at(size, 'heartbeats_per_s'):.2g} with "
        f"{grown.name(size)}"
        for size in grown.sizes[len(grown.sizes) // 2 :]
    )
    return (
        f"{grown.range} it is stable after {grown.at(grown.sizes[0], 'stable_s'):.2g} to "
        f"{grown.at(largest, 'stable_s'):.2g} s; a member more costs the broker "
        f"{grown.a_unit('broker_cpu_to_stable_s') * 1000:.2g} ms, and a heartbeat, in ms of the "
        f"broker and what it takes idle among it: {heartbeats}"
    )


def record_size(grown: Grown) -> str:
    """Where a record's bytes begin to decide: from there on as many MB/s as at the largest."""
    measure, sizes = "send_mb_per_s", grown.sizes
    last = grown.at(sizes[-1], measure)
    slow = [size for size in sizes if grown.at(size, measure) < last / 2]
    bend = next(size for size in sizes if not slow or size > max(slow))
    first, second = (grown.at(size, "send_records_per_s") for size in sizes[:2])
    return (
        f"Sending makes {first:,.0f} records a second of {grown.name(sizes[0])} and {second:,.0f} "
        f"of {grown.name(sizes[1])}; from {grown.name(bend)} on it is bytes, no less than half of "
        f"the {last:.0f} MB/s of {grown.name(sizes[-1])}"
    )


def batch_size(grown: Grown) -> str:
    """Where a batch costs twice what it costs with the fewest records, between two sizes."""
    measure, sizes = "broker_us_a_batch", grown.sizes
    fixed = grown.at(sizes[0], measure)
    dear = next((at for at, size in enumerate(sizes) if grown.at(size, measure) > 2 * fixed), 0)
    steps = [
        (grown.at(b, measure) - grown.at(a, measure)) / (b - a)
        for a, b in itertools.pairwise(sizes)
    ]
    bend = ""
    if dear:
        below = sizes[dear - 1]
        records = below + (2 * fixed - grown.at(below, measure)) / steps[dear - 1]
        some = f"{float(f'{records:.2g}'):,g}"
        bend = f": one of some {some} records of 200 bytes costs twice that"
    return (
        f"A batch of {grown.name(sizes[0])} record costs the broker {fixed / 1000:.2g} ms, each "
        f"record more {max(steps):.1g} us in small batches and {min(steps):.1g} in large ones{bend}"
    )
