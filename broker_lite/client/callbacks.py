"""What a group's consumer tells its user: partitions that come, go, or are lost.

Each is called as ``callback(consumer, partitions)``, on the thread that reads, within a call that
asks for records (or the one that makes the consumer, or closes it).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker_lite.model import TopicPartition

Callback = Callable[[Any, list[TopicPartition]], Any]


class Callbacks(NamedTuple):
    """``on_assign``: these are read from now on; their positions are known, and ``seek`` works.
    ``on_revoke``: these go to another member after the call; what is done with is committed where
    the consumer does so by itself, and ``commit`` works. ``on_lost``: these went already, and a
    commit of them is refused; None: ``on_revoke`` is called for them too."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None

    def assigned(self, consumer: Any, wheres: Iterable[TopicPartition]) -> Any:
        return _call(self.on_assign, consumer, wheres)

    def revoked(self, consumer: Any, wheres: Iterable[TopicPartition]) -> Any:
        return _call(self.on_revoke, consumer, wheres)

    def lost(self, consumer: Any, wheres: Iterable[TopicPartition]) -> Any:
        return _call(self.on_lost or self.on_revoke, consumer, wheres)


NO_CALLBACKS = Callbacks()


def _call(callback: Callback | None, consumer: Any, wheres: Iterable[TopicPartition]) -> Any:
    listed = sorted(wheres)
    return callback(consumer, listed) if callback is not None and listed else None


async def done(result: Any) -> None:
    """Wait for a callback that is a coroutine."""
    if inspect.isawaitable(result):
        await result
