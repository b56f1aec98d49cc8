"""The outputs of ``controller.Controller.step``: ZooKeeper writes, answers and warnings.

The caller carries them out in order. An effect's ``token`` identifies the request that it belongs
to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import StateChange, TopicPartition, TopicView

STATES_PER_WRITE_MAX = 500
"""Maximum number of partition states in one write: 300 bytes each; ZooKeeper accepts 1 MB."""


class WriteTopic(NamedTuple):
    """Create all znodes of a new topic. The write fails if the topic exists."""

    token: int
    topic: TopicView


class WritePartitions(NamedTuple):
    """Add partitions to a topic: create znodes for the partitions from number ``first_added`` on,
    and assign replicas."""

    token: int
    topic: TopicView
    first_added: int


class WriteAssignment(NamedTuple):
    """Write a topic's replica assignment, and ``states`` in the same ZooKeeper transaction.

    ``topic`` holds all partitions, also unchanged ones."""

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
    """Write the states of partitions in one ZooKeeper transaction.

    It fails if another broker has changed one of their znodes since the controller read it."""

    changes: tuple[StateChange, ...]


class WriteFeatures(NamedTuple):
    """Raise the cluster's features to the levels that every registered broker supports."""

    features: Mapping[str, int]


class RemoveDisks(NamedTuple):
    """Delete the znodes that list the data directories of a retired broker."""

    broker_id: int


class Answer(NamedTuple):
    """The answer to the request ``token``: an error, the topic, or each partition's outcome.

    ``topic`` is the topic after the write; for a request with ``validate_only``, the topic that the
    write would store. An outcome is an error, or None for success."""

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
