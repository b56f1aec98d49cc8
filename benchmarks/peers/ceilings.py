"""What a logbus that costs nothing would have where a tool of Kafka's is both sides' client.

For the rows whose ``ceiling`` this is, of which no side is a floor; ``peers.missed`` asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peers.meter import CLIENTS
from peers.row import KAFKA, LOGBUS


def only_by_a_floor(_: Mapping[str, Any], __: str) -> None:
    """Of a row whose rate the flush may limit: without its floor no figure bounds it."""


def without_servers(found: Mapping[str, Any], measure: str, *, count: int) -> float | None:
    """The ratio of a rate if logbus's servers took nothing of the cores and the tool had all.

    While the tool's clock runs, for ``count`` records at the measured rate, the cores have so many
    seconds (W); b of them logbus's servers took. The same records in W - b: so a rate has at most
    W / (W - b) of what it has. Of b nothing is left out, what servers took before the clock
    (a group's join) is even among it, so the bound is rather too high than too low. It holds where
    the processor is the limit: what waits for a disk or a timer could gain more. So None where all
    processes together took less than the cores had, the tool's start counted in; and where the
    servers took all that there was.
    """
    ours, theirs = found["sides"][LOGBUS], found["sides"][KAFKA]
    rate = ours["median"][measure]
    window = found["machine"]["cpus"] * count / rate
    spent = {role: each["cpu_s"] for role, each in ours["processes"].items()}
    taken = sum(spent.values()) - spent[CLIENTS]
    if taken >= window or sum(spent.values()) < window:
        return None
    return float(rate / theirs["median"][measure] * window / (window - taken))
