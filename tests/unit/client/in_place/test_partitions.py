"""Tests of which partitions a client reads from log files, and of its requests for open files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.stored_ranges import WHERE, write

from broker_lite.client.in_place.partitions import NO_TICKETS_S, InPlace
from broker_lite.machine import machine_id
from broker_lite.model import Endpoint
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.wire.fetch import FileTicket

ONE = Endpoint("one", 1)


class Bench:
    """The open log files of a reader, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.in_place = InPlace(lambda endpoint, lane: True, now_s=lambda: self.now_s)

    def offers(self) -> tuple[bool, bool]:
        """Return whether the next fetch accepts file paths, and whether tickets for open files."""
        offer = self.in_place.offer(ONE, "fetch", [WHERE])
        return offer.machine == machine_id() != b"", offer.takes_tickets


def test_client_that_cannot_receive_a_file_descriptor_fetches_records_and_retries_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    assert bench.offers() == (True, True)
    stored = write(tmp_path / "0.log", [b"a"])
    walker = BatchWalker(WalkPolicy(leader_epoch=3), 0, epoch=0, at_boundary=True)
    unreachable = FileTicket(os.urandom(16), os.urandom(16))
    bench.in_place.open(WHERE, stored._replace(path="", ticket=unreachable), walker)
    assert WHERE not in bench.in_place
    assert bench.offers() == (True, False)
    bench.now_s += NO_TICKETS_S - 1
    assert bench.offers() == (True, False)
    bench.now_s += 1
    assert bench.offers() == (True, True)


def test_client_fetches_from_the_broker_if_it_cannot_open_the_log_file(
    tmp_path: Path,
) -> None:
    bench = Bench()
    stored = write(tmp_path / "0.log", [b"a"])
    walker = BatchWalker(WalkPolicy(leader_epoch=3), 0, epoch=0, at_boundary=True)
    bench.in_place.open(WHERE, stored._replace(path=str(tmp_path / "1.log")), walker)
    assert bench.offers() == (False, False)
