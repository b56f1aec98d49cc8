"""Callbacks of a group's consumer: partitions assigned, revoked or lost.

Each is called as ``callback(consumer, partitions)`` on the reading thread, within a call that asks
for records, or that creates or closes the consumer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker_lite.model import TopicPartition

Callback = Callable[[Any, list[TopicPartition]], Any]


class Callbacks(NamedTuple):
    """The callbacks of one consumer.

    ``on_assign``: the partitions are assigned; their positions are known and ``seek`` works.
    ``on_revoke``: the partitions move to another member after the call; ``commit`` works, and
    automatic commits are done. ``on_lost``: the partitions already moved, so a commit is refused;
    None calls ``on_revoke`` instead.
    """

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
    """Await a callback that is a coroutine."""
    if inspect.isawaitable(result):
        await result
