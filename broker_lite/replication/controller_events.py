"""What happens to the controller: the inputs of ``controller.Controller.step``.

Requests carry a token, the shell's own and never reused; each is answered once (``Answer``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from broker_lite.model import BrokerView, StateChange, TopicPartition, TopicView
from broker_lite.replication.controller_effects import Write


class Loaded(NamedTuple):
    """This broker became controller in ``controller_epoch``, or reads everything anew.

    ``known``: every broker that ever registered and was not retired. ``suspects``: broker ids with
    the broker epoch of the process that seems to be dead.
    """

    controller_epoch: int
    brokers: Mapping[int, BrokerView]
    topics: Mapping[str, TopicView]
    features: Mapping[str, int]
    known: Collection[int] = ()
    suspects: Mapping[int, int] = {}


class BrokersChanged(NamedTuple):
    """All registered brokers; one with another broker epoch went and came back."""

    brokers: Mapping[int, BrokerView]
    suspects: Mapping[int, int] = {}


class SuspectsChanged(NamedTuple):
    """Peers' connections ended and are refused, or are there again."""

    suspects: Mapping[int, int]


class StatesRead(NamedTuple):
    """States that others wrote, leaders for example; older ones than are known do nothing."""

    states: Sequence[StateChange]


class WriteRefused(NamedTuple):
    """A write of states found others: these. The request or Tick that led to it is to be fed again,
    then, as after any other event, SuspectsChanged, which has everything decided anew."""

    states: Sequence[StateChange]


class Tick(NamedTuple):
    """Time passed: ``Controller.due_ms`` is reached."""


class TopicCreationRequested(NamedTuple):
    """``topic_id`` is a fresh random one; ``assignment`` overrides the two numbers.

    ``replication_factor`` None: three, or as many as there are brokers.
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
    token: int
    name_or_id: str


class PartitionsRequested(NamedTuple):
    """``partition_count`` is the topic's new one; ``assignment`` is for the added partitions."""

    token: int
    name: str
    partition_count: int
    assignment: Sequence[Sequence[int]] | None = None
    validate_only: bool = False


class ConfigChangeRequested(NamedTuple):
    """Settings to set (text) or to remove (None)."""

    token: int
    name: str
    changes: Mapping[str, str | None]
    validate_only: bool = False


class ReassignmentRequested(NamedTuple):
    """The replicas that partitions shall have, the preferred leader first; None: as before."""

    token: int
    targets: Mapping[TopicPartition, Sequence[int] | None]
    may_change_factor: bool = True


class ElectionRequested(NamedTuple):
    """Elect preferred leaders now, or, ``unclean``, leaders that may miss records.

    ``partitions`` None: all.
    """

    token: int
    unclean: bool
    partitions: Collection[TopicPartition] | None


class RetirementRequested(NamedTuple):
    """This broker will not come back."""

    token: int
    broker_id: int


class Written(NamedTuple):
    """A write of ours was done."""

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
    Loaded | BrokersChanged | SuspectsChanged | StatesRead | WriteRefused | Tick | Written | Request
)
