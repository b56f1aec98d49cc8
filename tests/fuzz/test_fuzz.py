"""Run each target of ``make fuzz`` with a thousandth of its usual inputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count

import pytest

from fuzz import soak
from fuzz.targets import INPUTS, TARGETS

SHARE = 1000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_fuzz_target_survives_random_input(name: str) -> None:
    inputs = INPUTS[name] // SHARE
    assert soak.run(name, first=0, count=inputs, seconds=100)["inputs"] == inputs


def test_failed_fuzz_run_prints_the_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = count()
    monkeypatch.setattr(TARGETS["jaas"], "once", lambda target, rng: 1 // (7 - next(seeds)))
    with pytest.raises(ZeroDivisionError):
        soak.run("jaas", first=0, count=20, seconds=10)
    assert "--only jaas --first 7 --count 1" in capsys.readouterr().out
