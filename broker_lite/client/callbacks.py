"""Callbacks of a group's consumer: partitions assigned, revoked or lost.

Each is called as ``callback(consumer, partitions)`` on the reading thread, within a call that asks
for records, or that creates or closes the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker_lite.model import TopicPartition

Callback = Callable[[Any, list[TopicPartition]], Any]


class Callbacks(NamedTuple):
    """The callbacks of one consumer.

    ``on_assign``: the partitions are assigned; their positions are known and ``seek`` works.
    ``on_revoke``: the partitions move to another member after the call; ``commit`` works, and
    automatic commits are done. ``on_lost``: the partitions have already moved, so a commit would be
    refused. Without ``on_lost``, ``on_revoke`` is called instead.
    """

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None

    @property
    def lost(self) -> Callback | None:
        """Return the callback for lost partitions."""
        return self.on_lost or self.on_revoke


NO_CALLBACKS = Callbacks()


def call_back(callback: Callback | None, consumer: Any, tps: Iterable[TopicPartition]) -> Any:
    """Call a callback with the sorted partitions, unless there are none, and return its result."""
    listed = sorted(tps)
    return callback(consumer, listed) if callback is not None and listed else None
