"""Claims and the order in which they hear of things."""

from __future__ import annotations

from broker_lite.client.native.asking import BACKOFF_MAX_MS, Asking
from broker_lite.client.native.events import Get
from broker_lite.client.native.holdings import Holdings
from broker_lite.client.native.view import TopicFacts
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Znode
from broker_lite.model import TopicPartition


def test_an_owner_whose_end_is_heard_of_before_it_was_seen_is_not_awaited() -> None:
    """Watches come on another thread than answers: the claim waited two seconds for nothing."""
    asking, where = Asking(), TopicPartition("t", 0)
    holdings = Holdings(asking, "g", "me")
    holdings.aim({where: (0, TopicFacts("id", 1, 1))}, taken={where})
    (look,) = asking.out
    assert isinstance(look, Get) and look.watch
    assert look.path == znodes.owner_path("g", *where)
    holdings.owner_changed(look.path)
    asking.answered(look.tag, Znode(b"{}", 0, 1, 77))
    due_ms = holdings.next_ms()
    assert due_ms is not None and due_ms < BACKOFF_MAX_MS / 4
