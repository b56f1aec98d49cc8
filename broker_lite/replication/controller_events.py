"""The inputs of ``controller.Controller.step``.

Each request carries a ``token``, a number that the caller never reuses, and is answered with one
``Answer`` of that token."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from broker_lite.model import BrokerView, StateChange, TopicPartition, TopicView
from broker_lite.replication.controller_effects import Write


class Loaded(NamedTuple):
    """This broker became controller in ``controller_epoch``, or has read all metadata again.

    ``known`` has the ids of all brokers that ever registered and were not retired. ``suspects`` has
    the broker epoch of each registered process that is probably dead, by broker id."""

    controller_epoch: int
    brokers: Mapping[int, BrokerView]
    topics: Mapping[str, TopicView]
    features: Mapping[str, int]
    known: Collection[int] = ()
    suspects: Mapping[int, int] = {}


class BrokersChanged(NamedTuple):
    """The set of registered brokers changed.

    A broker with a new broker epoch has registered again, for example after a restart."""

    brokers: Mapping[int, BrokerView]
    suspects: Mapping[int, int] = {}


class SuspectsChanged(NamedTuple):
    """The set of suspected brokers changed; ``suspects`` has their broker epochs, by broker id.

    A broker is suspected while other brokers cannot connect to it, although it is registered in
    ZooKeeper."""

    suspects: Mapping[int, int]


class StatesRead(NamedTuple):
    """Partition states that other brokers wrote, for example a leader that changed its ISR.

    States older than the controller's are ignored."""

    states: Sequence[StateChange]


class WriteRefused(NamedTuple):
    """A write of partition states failed, because ZooKeeper holds the newer ``states``.

    If a Request or ControllerTick led to the write, the caller then passes that event to ``step``
    again. Otherwise it passes SuspectsChanged with the same suspects, because on this event the
    controller decides about every partition again."""

    states: Sequence[StateChange]


class ControllerTick(NamedTuple):
    """The time ``Controller.due_ms`` has come: a partition may now return to its preferred
    leader."""


class TopicCreationRequested(NamedTuple):
    """Create a topic. ``topic_id`` is a new random id, chosen by the caller.

    ``assignment`` lists the brokers of each partition and overrides ``partition_count`` and
    ``replication_factor``. A factor of None means three, or fewer if fewer brokers are known."""

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
    """Add partitions to a topic, up to the total ``partition_count``.

    ``assignment`` lists the brokers of each added partition only."""

    token: int
    name: str
    partition_count: int
    assignment: Sequence[Sequence[int]] | None = None
    validate_only: bool = False


class ConfigChangeRequested(NamedTuple):
    """Change topic settings. A text in ``changes`` is a new value; None resets the setting."""

    token: int
    name: str
    changes: Mapping[str, str | None]
    validate_only: bool = False


class ReassignmentRequested(NamedTuple):
    """Move partitions to new replicas, the preferred leader first; None in place of replicas
    cancels a partition's reassignment."""

    token: int
    targets: Mapping[TopicPartition, Sequence[int] | None]
    may_change_factor: bool = True


class ElectionRequested(NamedTuple):
    """Elect the preferred leaders of ``partitions``; None means all.

    With ``unclean``, elect instead a live replica for each partition without a leader, even one
    that lacks records."""

    token: int
    unclean: bool
    partitions: Collection[TopicPartition] | None


class RetirementRequested(NamedTuple):
    """Remove a stopped broker that will not come back (``logbus broker retire``)."""

    token: int
    broker_id: int


class Written(NamedTuple):
    """ZooKeeper has stored a write that the controller returned as an effect."""

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
