"""The client's requests ElectLeaders v2, AlterPartitionReassignments v1, ListPartitionReassignments
v0 and UnregisterBroker v0, with which an administrator elects leaders, moves replicas and removes
brokers.

A reassignment moves replicas of a partition to other brokers. Field names are Kafka's. The client
sends the requests to the controller, except UnregisterBroker, which any broker accepts. For
UnregisterBroker the module also has the broker's side, because ``kafka.protocol`` (kafka-python)
does not know this request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer

ELECTION_PREFERRED, ELECTION_UNCLEAN = 0, 1


class PartitionResult(NamedTuple):
    """The result of electing a leader of one partition."""

    partition_id: int
    error_code: int
    error_message: str | None


class ReplicaElectionResult(NamedTuple):
    topic: str
    partition_result: tuple[PartitionResult, ...]


class ElectLeadersResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    replica_election_results: tuple[ReplicaElectionResult, ...]


class TopicPartitions(NamedTuple):
    """A topic and the numbers of its requested partitions."""

    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest:
    """Elect leaders of partitions; with ``topics`` None, of all partitions that need an
    election."""

    API_KEY: ClassVar[int] = ApiKey.ELECT_LEADERS
    VERSION: ClassVar[int] = 2

    election_type: int
    topics: tuple[TopicPartitions, ...] | None
    timeout_ms: int = 60_000

    def encode(self, writer: Writer) -> None:
        writer.i8(self.election_type)
        writer.nullable_array(self.topics, lambda row: _put_partitions(writer, row))
        writer.i32(self.timeout_ms)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> ElectLeadersResponse:
        return reader.ended(
            ElectLeadersResponse(reader.i32(), reader.i16(), reader.array(_election_result))
        )


class ReassignablePartition(NamedTuple):
    """A partition to move to the brokers ``replicas``; None cancels its present reassignment."""

    partition_index: int
    replicas: tuple[int, ...] | None


class ReassignableTopic(NamedTuple):
    name: str
    partitions: tuple[ReassignablePartition, ...]


class ReassignablePartitionResponse(NamedTuple):
    """The result of starting or cancelling the reassignment of one partition."""

    partition_index: int
    error_code: int
    error_message: str | None


class ReassignableTopicResponse(NamedTuple):
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


class AlterPartitionReassignmentsResponse(NamedTuple):
    throttle_time_ms: int
    allow_replication_factor_change: bool
    error_code: int
    error_message: str | None
    responses: tuple[ReassignableTopicResponse, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest:
    """Start to move partitions to other brokers, or cancel such moves."""

    API_KEY: ClassVar[int] = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    VERSION: ClassVar[int] = 1

    topics: tuple[ReassignableTopic, ...]
    timeout_ms: int = 60_000
    allow_replication_factor_change: bool = True

    def encode(self, writer: Writer) -> None:
        def put_partition(row: ReassignablePartition) -> None:
            writer.i32(row.partition_index)
            writer.nullable_array(row.replicas, writer.i32)
            writer.tag_end()

        def put_topic(row: ReassignableTopic) -> None:
            writer.string(row.name)
            writer.array(row.partitions, put_partition)
            writer.tag_end()

        writer.i32(self.timeout_ms)
        writer.boolean(self.allow_replication_factor_change)
        writer.array(self.topics, put_topic)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> AlterPartitionReassignmentsResponse:
        return reader.ended(
            AlterPartitionReassignmentsResponse(
                reader.i32(),
                reader.boolean(),
                reader.i16(),
                reader.nullable_string(),
                reader.array(_reassigned_topic),
            )
        )


class OngoingPartition(NamedTuple):
    """A partition with a reassignment in progress. ``replicas`` has the old and the new
    replicas."""

    partition_index: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class OngoingTopic(NamedTuple):
    name: str
    partitions: tuple[OngoingPartition, ...]


class ListPartitionReassignmentsResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    topics: tuple[OngoingTopic, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest:
    """List the reassignments in progress. With ``topics`` None, list those of all topics."""

    API_KEY: ClassVar[int] = ApiKey.LIST_PARTITION_REASSIGNMENTS
    VERSION: ClassVar[int] = 0

    topics: tuple[TopicPartitions, ...] | None = None
    timeout_ms: int = 60_000

    def encode(self, writer: Writer) -> None:
        writer.i32(self.timeout_ms)
        writer.nullable_array(self.topics, lambda row: _put_partitions(writer, row))
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> ListPartitionReassignmentsResponse:
        return reader.ended(
            ListPartitionReassignmentsResponse(
                reader.i32(), reader.i16(), reader.nullable_string(), reader.array(_ongoing_topic)
            )
        )


class UnregisterBrokerResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    error_message: str | None


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRequest:
    """Remove a broker from the cluster's metadata, because it will not return."""

    API_KEY: ClassVar[int] = ApiKey.UNREGISTER_BROKER
    VERSION: ClassVar[int] = 0

    broker_id: int

    def encode(self, writer: Writer) -> None:
        writer.i32(self.broker_id)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> UnregisterBrokerResponse:
        return reader.ended(
            UnregisterBrokerResponse(reader.i32(), reader.i16(), reader.nullable_string())
        )

    @staticmethod
    def decode_request(reader: Reader) -> UnregisterBrokerRequest:
        """Decode an UnregisterBroker request from the start of its body, on the broker's side."""
        return reader.ended(UnregisterBrokerRequest(reader.i32()))


def encode_unregister_broker(response: UnregisterBrokerResponse, writer: Writer) -> None:
    """Write the body of the answer to UnregisterBroker, on the broker's side."""
    writer.i32(response.throttle_time_ms)
    writer.i16(response.error_code)
    writer.nullable_string(response.error_message)
    writer.tag_end()


def _put_partitions(writer: Writer, row: TopicPartitions) -> None:
    writer.string(row.name)
    writer.array(row.partitions, writer.i32)
    writer.tag_end()


def _election_result(reader: Reader) -> ReplicaElectionResult:
    return reader.ended(ReplicaElectionResult(reader.string(), reader.array(_elected_partition)))


def _elected_partition(reader: Reader) -> PartitionResult:
    return reader.ended(PartitionResult(reader.i32(), reader.i16(), reader.nullable_string()))


def _reassigned_topic(reader: Reader) -> ReassignableTopicResponse:
    return reader.ended(
        ReassignableTopicResponse(reader.string(), reader.array(_reassigned_partition))
    )


def _reassigned_partition(reader: Reader) -> ReassignablePartitionResponse:
    return reader.ended(
        ReassignablePartitionResponse(reader.i32(), reader.i16(), reader.nullable_string())
    )


def _ongoing_topic(reader: Reader) -> OngoingTopic:
    return reader.ended(OngoingTopic(reader.string(), reader.array(_ongoing_partition)))


def _ongoing_partition(reader: Reader) -> OngoingPartition:
    return reader.ended(
        OngoingPartition(
            reader.i32(),
            reader.array(Reader.i32),
            reader.array(Reader.i32),
            reader.array(Reader.i32),
        )
    )
