"""The inputs of ``controller.Controller.step``.

Each request carries a token, which the shell chooses and never reuses. Each request gets one
``Answer``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from broker_lite.model import BrokerView, StateChange, TopicPartition, TopicView
from broker_lite.replication.controller_effects import Write


class Loaded(NamedTuple):
    """This broker became controller in ``controller_epoch``, or has read all metadata again.

    ``known`` has the ids of all brokers that ever registered and were not retired. ``suspects`` has
    the broker epoch of each registered process that is probably dead, by broker id.
    """

    controller_epoch: int
    brokers: Mapping[int, BrokerView]
    topics: Mapping[str, TopicView]
    features: Mapping[str, int]
    known: Collection[int] = ()
    suspects: Mapping[int, int] = {}


class BrokersChanged(NamedTuple):
    """The set of registered brokers changed. A changed broker epoch means that a broker has
    registered again."""

    brokers: Mapping[int, BrokerView]
    suspects: Mapping[int, int] = {}


class SuspectsChanged(NamedTuple):
    """The set of suspected brokers changed. A broker is suspected while other brokers cannot
    connect to it, although it is still registered.
    """

    suspects: Mapping[int, int]


class StatesRead(NamedTuple):
    """Partition states that other brokers wrote, for example a leader that changed its ISR.

    The controller ignores states that are older than its own.
    """

    states: Sequence[StateChange]


class WriteRefused(NamedTuple):
    """A write of partition states failed because ZooKeeper holds these newer states.

    The shell then passes the failed request or Tick again. If another event failed, it passes
    SuspectsChanged, which repeats every decision.
    """

    states: Sequence[StateChange]


class ControllerTick(NamedTuple):
    """The time ``Controller.due_ms`` has passed."""


class TopicCreationRequested(NamedTuple):
    """Create a topic. ``topic_id`` is a new random id.

    ``assignment`` overrides ``partition_count`` and ``replication_factor``. A factor of None means
    three, or the number of known brokers if that is smaller.
    """

    token: int
    name: str
    topic_id: str
    partition_count: int
    replication_factor: int | None
    assignment: Sequence[Sequence[int]] | None
    config: Mapping[str, str]
    validate_only: bool = False


class TopicDeletionRequested(NamedTuple):
    """Delete a topic, by name or id."""

    token: int
    name_or_id: str


class PartitionsRequested(NamedTuple):
    """Add partitions to a topic. ``partition_count`` is the new total. ``assignment`` covers only
    the added partitions."""

    token: int
    name: str
    partition_count: int
    assignment: Sequence[Sequence[int]] | None = None
    validate_only: bool = False


class ConfigChangeRequested(NamedTuple):
    """Change topic settings. A text sets the value, and None removes the setting."""

    token: int
    name: str
    changes: Mapping[str, str | None]
    validate_only: bool = False


class ReassignmentRequested(NamedTuple):
    """Move partitions to new replicas, the preferred leader first. None cancels a reassignment."""

    token: int
    targets: Mapping[TopicPartition, Sequence[int] | None]
    may_change_factor: bool = True


class ElectionRequested(NamedTuple):
    """Elect the preferred leaders of these partitions. None means all partitions.

    With ``unclean``, elect leaders that may lack records for partitions without a leader.
    """

    token: int
    unclean: bool
    partitions: Collection[TopicPartition] | None


class RetirementRequested(NamedTuple):
    """Forget a stopped broker that will not return (``logbus broker retire``)."""

    token: int
    broker_id: int


class Written(NamedTuple):
    """A write of this controller is complete."""

    write: Write


Request = (
    TopicCreationRequested
    | TopicDeletionRequested
    | PartitionsRequested
    | ConfigChangeRequested
    | ReassignmentRequested
    | ElectionRequested
    | RetirementRequested
)
ControllerEvent = (
    Loaded
    | BrokersChanged
    | SuspectsChanged
    | StatesRead
    | WriteRefused
    | ControllerTick
    | Written
    | Request
)
