"""The callbacks of a consumer in a group: for partitions that it receives, gives up or loses.

The consumer calls ``callback(consumer, partitions)`` on the thread that reads from it. It does so
only in calls that ask for records, or that create or close the consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker_lite.model import TopicPartition

Callback = Callable[[Any, list[TopicPartition]], Any]


class Callbacks(NamedTuple):
    """The three callbacks of a consumer in a group.

    - ``on_assign``: the group assigned the partitions, and their positions are known. The callback
      may ``seek``.
    - ``on_revoke``: the partitions move to another member after the callback. The automatic commit
      has been made, and the callback may still ``commit``.
    - ``on_lost``: the group gave the partitions away, other members may own them, and it would
      refuse a commit. Without ``on_lost``, ``on_revoke`` is called."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None

    @property
    def lost(self) -> Callback | None:
        """The callback for lost partitions: ``on_lost``, else ``on_revoke``."""
        return self.on_lost or self.on_revoke


NO_CALLBACKS = Callbacks()


def call_back(callback: Callback | None, consumer: Any, tps: Iterable[TopicPartition]) -> Any:
    """Call ``callback`` with the sorted partitions and return its result.

    Without a callback or partitions, do nothing."""
    listed = sorted(tps)
    return callback(consumer, listed) if callback is not None and listed else None
