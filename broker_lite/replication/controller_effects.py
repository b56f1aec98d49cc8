"""The outputs of ``controller.Controller.step``, in the order in which to carry them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import StateChange, TopicPartition, TopicView

STATES_PER_WRITE_MAX = 500
"""Maximum partition states in one write. A state takes about 300 bytes, and ZooKeeper accepts
writes of at most 1 MB.
"""


class WriteTopic(NamedTuple):
    """Create all znodes of the topic, which must not exist."""

    token: int
    topic: TopicView


class WritePartitions(NamedTuple):
    """Create the znodes of the partitions from ``first_added`` on, and set the assignment."""

    token: int
    topic: TopicView
    first_added: int


class WriteAssignment(NamedTuple):
    """Set the topic's assignment and, in the same write, the partition states in ``states``.

    ``topic`` holds all partitions of the topic, including unchanged ones.
    """

    topic: TopicView
    states: tuple[StateChange, ...]


class RemoveTopic(NamedTuple):
    """Delete all znodes of the topic."""

    token: int
    topic: TopicView


class WriteConfig(NamedTuple):
    """Set the topic's settings to ``topic.config``."""

    token: int
    topic: TopicView


class WriteStates(NamedTuple):
    """Set the states of partitions. The write fails if the znode of any partition has another
    version."""

    changes: tuple[StateChange, ...]


class WriteFeatures(NamedTuple):
    """Raise the cluster's features to the levels that every live broker supports."""

    features: Mapping[str, int]


class RemoveDisks(NamedTuple):
    """Delete the znodes of a retired broker's data directories."""

    broker_id: int


class Answer(NamedTuple):
    """The result of a request: an error, the topic, or an outcome for each partition.

    ``topic`` is the topic after the write. With ``validate_only``, it is the topic that a write
    would make.
    """

    token: int
    topic: TopicView | None = None
    error: LogbusError | None = None
    outcomes: Mapping[TopicPartition, LogbusError | None] = {}


class Warn(NamedTuple):
    """Write a warning to the broker's log."""

    text: str


Write = (
    WriteTopic
    | WritePartitions
    | WriteAssignment
    | RemoveTopic
    | WriteConfig
    | WriteStates
    | WriteFeatures
    | RemoveDisks
)
ControllerEffect = Write | Answer | Warn
