"""The client's requests ElectLeaders v2, AlterPartitionReassignments v1, ListPartitionReassignments
v0 and UnregisterBroker v0, with which an administrator elects leaders, moves replicas and removes
brokers.

A reassignment moves replicas of a partition to other brokers. Field names are Kafka's. The client
sends the requests to the controller, except UnregisterBroker, which any broker accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int8, Int16, Int32

ELECTION_PREFERRED, ELECTION_UNCLEAN = 0, 1


class PartitionResult(NamedTuple):
    """The result of electing a leader of one partition."""

    partition_id: Int32
    error_code: Int16
    error_message: str | None


class ReplicaElectionResult(NamedTuple):
    topic: str
    partition_result: tuple[PartitionResult, ...]


class ElectLeadersResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    replica_election_results: tuple[ReplicaElectionResult, ...]


class TopicPartitions(NamedTuple):
    """A topic and the numbers of its requested partitions."""

    name: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest(DeclaredCall[ElectLeadersResponse]):
    """Elect leaders of partitions; with ``topics`` None, of all partitions that need an
    election."""

    API_KEY: ClassVar[int] = ApiKey.ELECT_LEADERS
    VERSION: ClassVar[int] = 2

    election_type: Int8
    topics: tuple[TopicPartitions, ...] | None
    timeout_ms: Int32 = 60_000


class ReassignablePartition(NamedTuple):
    """A partition to move to the brokers ``replicas``; None cancels its present reassignment."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None


class ReassignableTopic(NamedTuple):
    name: str
    partitions: tuple[ReassignablePartition, ...]


class ReassignablePartitionResponse(NamedTuple):
    """The result of starting or cancelling the reassignment of one partition."""

    partition_index: Int32
    error_code: Int16
    error_message: str | None


class ReassignableTopicResponse(NamedTuple):
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


class AlterPartitionReassignmentsResponse(NamedTuple):
    throttle_time_ms: Int32
    allow_replication_factor_change: bool
    error_code: Int16
    error_message: str | None
    responses: tuple[ReassignableTopicResponse, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest(DeclaredCall[AlterPartitionReassignmentsResponse]):
    """Start to move partitions to other brokers, or cancel such moves."""

    API_KEY: ClassVar[int] = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    VERSION: ClassVar[int] = 1

    timeout_ms: Int32
    allow_replication_factor_change: bool = field(default=True, kw_only=True)
    topics: tuple[ReassignableTopic, ...]


class OngoingPartition(NamedTuple):
    """A partition with a reassignment in progress. ``replicas`` has the old and the new
    replicas."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


class OngoingTopic(NamedTuple):
    name: str
    partitions: tuple[OngoingPartition, ...]


class ListPartitionReassignmentsResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    topics: tuple[OngoingTopic, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest(DeclaredCall[ListPartitionReassignmentsResponse]):
    """List the reassignments in progress. With ``topics`` None, list those of all topics."""

    API_KEY: ClassVar[int] = ApiKey.LIST_PARTITION_REASSIGNMENTS
    VERSION: ClassVar[int] = 0

    timeout_ms: Int32 = 60_000
    topics: tuple[TopicPartitions, ...] | None = None


class UnregisterBrokerResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest(DeclaredCall[UnregisterBrokerResponse]):
    """Remove a broker from the cluster's metadata, because it will not return."""

    API_KEY: ClassVar[int] = ApiKey.UNREGISTER_BROKER
    VERSION: ClassVar[int] = 0

    broker_id: Int32
