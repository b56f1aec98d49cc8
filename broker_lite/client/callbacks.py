"""The callbacks of a consumer in a group: for partitions that it receives, gives up or loses.

The consumer calls ``callback(consumer, partitions)`` on the thread that reads from it. It does so
only within a call that asks for records, or that creates or closes the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker_lite.model import TopicPartition

Callback = Callable[[Any, list[TopicPartition]], Any]


class Callbacks(NamedTuple):
    """The three callbacks of a consumer in a group.

    - ``on_assign``: the group assigned the partitions, and the consumer knows their positions. The
      callback may ``seek``.
    - ``on_revoke``: the partitions move to another member after the callback. The consumer has made
      its automatic commit, and the callback may still ``commit``.
    - ``on_lost``: the group gave the partitions away, and other members may already own them. The
      group would refuse a commit. Without ``on_lost``, the consumer calls ``on_revoke``.
    """

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None

    @property
    def lost(self) -> Callback | None:
        """Return the callback for lost partitions: ``on_lost``, else ``on_revoke``."""
        return self.on_lost or self.on_revoke


NO_CALLBACKS = Callbacks()


def call_back(callback: Callback | None, consumer: Any, tps: Iterable[TopicPartition]) -> Any:
    """Call ``callback`` with the sorted partitions, and return its result. Do nothing without a
    callback or without partitions."""
    listed = sorted(tps)
    return callback(consumer, listed) if callback is not None and listed else None
