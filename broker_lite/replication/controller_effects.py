"""What the controller wants done: the outputs of ``controller.Controller.step``, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import StateChange, TopicPartition, TopicView

STATES_PER_WRITE_MAX = 500
"""States of so many partitions are one write (about 300 bytes each; ZooKeeper takes 1 MB)."""


class WriteTopic(NamedTuple):
    """Create the topic's znodes, all of them; it must not exist."""

    token: int
    topic: TopicView


class WritePartitions(NamedTuple):
    """Create the znodes of the partitions from ``first_added`` on and set the assignment."""

    token: int
    topic: TopicView
    first_added: int


class WriteAssignment(NamedTuple):
    """Set the assignment, and the states that change with it; ``topic`` holds all of them."""

    topic: TopicView
    states: tuple[StateChange, ...]


class RemoveTopic(NamedTuple):
    """Delete the topic's znodes, all of them."""

    token: int
    topic: TopicView


class WriteConfig(NamedTuple):
    """Set the topic's settings to ``topic.config``."""

    token: int
    topic: TopicView


class WriteStates(NamedTuple):
    changes: tuple[StateChange, ...]


class WriteFeatures(NamedTuple):
    """Raise the cluster's features to what every live broker has."""

    features: Mapping[str, int]


class RemoveDisks(NamedTuple):
    """Forget every data directory of this broker."""

    broker_id: int


class Answer(NamedTuple):
    """The end of a request: an error, or the topic as it is (or would be, or was), or the outcome
    for each partition."""

    token: int
    topic: TopicView | None = None
    error: LogbusError | None = None
    outcomes: Mapping[TopicPartition, LogbusError | None] = {}


class Warn(NamedTuple):
    """Something that a person must see."""

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
