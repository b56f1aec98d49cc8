"""The outputs of ``controller.Controller.step``: writes to ZooKeeper, answers to requests, and
warnings.

The caller carries them out in the order in which ``step`` returns them. ``token`` names the request
that an effect belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import StateChange, TopicPartition, TopicView

STATES_PER_WRITE_MAX = 500
"""Maximum number of partition states in one write to ZooKeeper. A state takes about 300 bytes, and
ZooKeeper accepts writes of at most 1 MB.
"""


class WriteTopic(NamedTuple):
    """Create all znodes of a new topic. The write fails if the topic exists."""

    token: int
    topic: TopicView


class WritePartitions(NamedTuple):
    """Add partitions to a topic: create the znodes of the partitions from number ``first_added``
    on, and write the assignment of replicas.
    """

    token: int
    topic: TopicView
    first_added: int


class WriteAssignment(NamedTuple):
    """Write the assignment of a topic's replicas and, in the same ZooKeeper transaction, the
    partition states in ``states``.

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
    """Write the states of partitions in one ZooKeeper transaction. It fails if another broker has
    changed the znode of any of these partitions since the controller read it."""

    changes: tuple[StateChange, ...]


class WriteFeatures(NamedTuple):
    """Raise the cluster's features to the levels that every registered broker supports."""

    features: Mapping[str, int]


class RemoveDisks(NamedTuple):
    """Delete the znodes that list the data directories of a retired broker."""

    broker_id: int


class Answer(NamedTuple):
    """The answer to the request ``token``: an error, the topic, or an outcome for each partition.

    ``topic`` is the topic after the write. For a request with ``validate_only`` it is the topic as
    the write would make it. An outcome is an error, or None for success.
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
