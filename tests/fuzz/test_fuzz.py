"""Run each target of ``make fuzz`` with a thousandth of its usual inputs."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from fuzz import soak
from fuzz.targets import INPUTS, TARGETS, Target

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


def _with_plain_messages(
    monkeypatch: pytest.MonkeyPatch, also: Callable[[], object]
) -> dict[str, object]:
    """Run the target of PLAIN messages, with ``also`` called for each input."""
    target = TARGETS["plain"]
    once = target.once

    def planted(self: Target, rng: random.Random) -> int:
        also()
        return once(self, rng)

    monkeypatch.setattr(target, "once", planted)
    return soak.run("plain", first=0, count=soak.WATCHED_EVERY, seconds=100)


def test_fuzz_run_finds_memory_that_is_out_of_proportion_to_the_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(AssertionError, match="bytes were allocated for an input of"):
        _with_plain_messages(monkeypatch, lambda: bytes(100_000))


def test_fuzz_run_finds_a_leak_of_a_few_bytes_for_each_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[bytes] = []
    with pytest.raises(AssertionError, match="bytes are kept for each input of"):
        _with_plain_messages(monkeypatch, lambda: kept.append(bytes(200)))
