"""A native group's member in a storm of changes: it looks now and then, and in the end at all."""

from __future__ import annotations

import pytest
from transcripts.native_machine import NativeMachine

from broker_lite.client.native.machine import LOOK_AFTER_MAX_MS
from broker_lite.client.native.view import View

CHANGES = 200
EVERY_MS = 10


def test_watch_storms_are_damped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that each of two hundred changes would be looked at by each of the members."""
    looked: list[int] = []
    look = View.look

    def counted(view: View) -> None:
        looked.append(world.now_ms)
        look(view)

    world = NativeMachine({"name": "m", "topics": "t"})
    world.do("topic", {"name": "t", "partitions": "8"})
    world.do("connect", {})
    world.do("at", {"ms": "5000"})
    monkeypatch.setattr(View, "look", counted)
    for n in range(CHANGES):
        world.do("other", {"name": f"n{n:03}", "topics": "t"})
        world.do("at", {"ms": str(5000 + EVERY_MS * n)})
    world.do("at", {"ms": str(5000 + EVERY_MS * CHANGES + LOOK_AFTER_MAX_MS)})
    assert 3 <= len(looked) <= 10
    assert len(world.machine.view.members) == 1 + CHANGES
