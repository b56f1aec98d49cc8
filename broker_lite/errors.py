"""The error table: code, class, retriable or not. Every error of logbus is a row of it.

Codes from -1 to 199 are Kafka's, so every client knows them; codes from 10000 up are ours and
never leave a broker on a Kafka API. ``str(error)`` begins with ``[LOGBUS_<NAME>]`` so that it can
be recognised behind a Spark stack trace. Messages name the option or object, the value and the
cure. All of them pickle. ``definite`` tells whether the request certainly had no effect.
"""

from __future__ import annotations

from typing import ClassVar


class LogbusError(Exception):
    """Base of every error that logbus raises on purpose."""

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = True

    def __init__(self, message: str = "") -> None:
        self.message = message or _DEFAULT_MESSAGES.get(self.name, self.name.replace("_", " "))
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"[LOGBUS_{self.name}] {self.message}"

    def __reduce__(self) -> tuple[type[LogbusError], tuple[str]]:
        return type(self), (self.message,)


class RetriableError(LogbusError):
    """Trying again, after fresh metadata where it names a leader, may succeed."""

    retriable = True


class UnknownServerError(LogbusError):
    code, name, definite = -1, "UNKNOWN_SERVER_ERROR", False


class OffsetOutOfRangeError(LogbusError):
    code, name = 1, "OFFSET_OUT_OF_RANGE"


class CorruptMessageError(RetriableError):
    code, name = 2, "CORRUPT_MESSAGE"


class UndecodableBatchError(CorruptMessageError):
    """A batch whose CRC is right but whose records cannot be decoded. Its producer wrote it so, and
    every replica has the same: the disk is sound."""

    name = "UNDECODABLE_BATCH"


class UnknownTopicOrPartitionError(RetriableError):
    code, name = 3, "UNKNOWN_TOPIC_OR_PARTITION"


class LeaderNotAvailableError(RetriableError):
    code, name = 5, "LEADER_NOT_AVAILABLE"


class NotLeaderError(RetriableError):
    """May follow a successful append, so it says nothing definite about a produce."""

    code, name, definite = 6, "NOT_LEADER_OR_FOLLOWER", False


class RequestTimedOutError(RetriableError):
    code, name, definite = 7, "REQUEST_TIMED_OUT", False


class BrokerNotAvailableError(RetriableError):
    code, name = 8, "BROKER_NOT_AVAILABLE"


class MessageTooLargeError(LogbusError):
    code, name = 10, "MESSAGE_TOO_LARGE"


class OffsetMetadataTooLargeError(LogbusError):
    code, name = 12, "OFFSET_METADATA_TOO_LARGE"


class NetworkError(RetriableError):
    """The connection ended or could not be made; what was under way may have happened."""

    code, name, definite = 13, "NETWORK_EXCEPTION", False


class CoordinatorLoadInProgressError(RetriableError):
    code, name = 14, "COORDINATOR_LOAD_IN_PROGRESS"


class CoordinatorNotAvailableError(RetriableError):
    code, name = 15, "COORDINATOR_NOT_AVAILABLE"


class NotCoordinatorError(RetriableError):
    code, name = 16, "NOT_COORDINATOR"


class InvalidTopicError(LogbusError):
    code, name = 17, "INVALID_TOPIC_EXCEPTION"


class RecordListTooLargeError(LogbusError):
    code, name = 18, "RECORD_LIST_TOO_LARGE"


class NotEnoughReplicasError(RetriableError):
    code, name = 19, "NOT_ENOUGH_REPLICAS"


class NotEnoughReplicasAfterAppendError(RetriableError):
    code, name, definite = 20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", False


class InvalidRequiredAcksError(LogbusError):
    code, name = 21, "INVALID_REQUIRED_ACKS"


class IllegalGenerationError(LogbusError):
    code, name = 22, "ILLEGAL_GENERATION"


class InconsistentGroupProtocolError(LogbusError):
    """The group is of the other kind: native and Kafka members do not mix."""

    code, name = 23, "INCONSISTENT_GROUP_PROTOCOL"


class InvalidGroupIdError(LogbusError):
    code, name = 24, "INVALID_GROUP_ID"


class UnknownMemberIdError(LogbusError):
    code, name = 25, "UNKNOWN_MEMBER_ID"


class InvalidSessionTimeoutError(LogbusError):
    code, name = 26, "INVALID_SESSION_TIMEOUT"


class RebalanceInProgressError(LogbusError):
    code, name = 27, "REBALANCE_IN_PROGRESS"


class InvalidTimestampError(LogbusError):
    """A record's time is outside the topic's message.timestamp.before/after.max.ms."""

    code, name = 32, "INVALID_TIMESTAMP"


class UnsupportedVersionError(LogbusError):
    code, name = 35, "UNSUPPORTED_VERSION"


class TopicExistsError(LogbusError):
    code, name = 36, "TOPIC_ALREADY_EXISTS"


class InvalidPartitionsError(LogbusError):
    code, name = 37, "INVALID_PARTITIONS"


class InvalidReplicationFactorError(LogbusError):
    code, name = 38, "INVALID_REPLICATION_FACTOR"


class InvalidReplicaAssignmentError(LogbusError):
    code, name = 39, "INVALID_REPLICA_ASSIGNMENT"


class InvalidConfigError(LogbusError):
    """An option is unknown, out of bounds, or at odds with another."""

    code, name = 40, "INVALID_CONFIG"


class NotControllerError(RetriableError):
    code, name = 41, "NOT_CONTROLLER"


class InvalidRequestError(LogbusError):
    code, name = 42, "INVALID_REQUEST"


class UnsupportedForMessageFormatError(LogbusError):
    code, name = 43, "UNSUPPORTED_FOR_MESSAGE_FORMAT"


class PolicyViolationError(LogbusError):
    code, name = 44, "POLICY_VIOLATION"


class OutOfOrderSequenceError(LogbusError):
    code, name = 45, "OUT_OF_ORDER_SEQUENCE_NUMBER"


class DuplicateSequenceError(LogbusError):
    code, name = 46, "DUPLICATE_SEQUENCE_NUMBER"


class InvalidProducerEpochError(LogbusError):
    code, name = 47, "INVALID_PRODUCER_EPOCH"


class InvalidTxnStateError(LogbusError):
    code, name = 48, "INVALID_TXN_STATE"


class TransactionalIdAuthorizationError(LogbusError):
    code, name = 53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


class StorageError(RetriableError):
    """A data directory has stopped: an fsync failed, the disk is full or gone."""

    code, name, definite = 56, "KAFKA_STORAGE_ERROR", False


class UnknownProducerIdError(LogbusError):
    code, name = 59, "UNKNOWN_PRODUCER_ID"


class NonEmptyGroupError(LogbusError):
    code, name = 68, "NON_EMPTY_GROUP"


class GroupIdNotFoundError(LogbusError):
    code, name = 69, "GROUP_ID_NOT_FOUND"


class MemberIdRequiredError(LogbusError):
    """The answer to a first join: join again with the member id that it gives."""

    code, name = 79, "MEMBER_ID_REQUIRED"


class GroupMaxSizeReachedError(LogbusError):
    code, name = 81, "GROUP_MAX_SIZE_REACHED"


class FencedInstanceIdError(LogbusError):
    """Another process joined under the same group.instance.id, and is the member now."""

    code, name = 82, "FENCED_INSTANCE_ID"


class GroupSubscribedToTopicError(LogbusError):
    code, name = 86, "GROUP_SUBSCRIBED_TO_TOPIC"


class FencedLeaderEpochError(RetriableError):
    code, name = 74, "FENCED_LEADER_EPOCH"


class UnknownLeaderEpochError(RetriableError):
    code, name = 75, "UNKNOWN_LEADER_EPOCH"


class UnsupportedCompressionTypeError(LogbusError):
    code, name = 76, "UNSUPPORTED_COMPRESSION_TYPE"


class StaleBrokerEpochError(LogbusError):
    code, name = 77, "STALE_BROKER_EPOCH"


class OffsetNotAvailableError(RetriableError):
    code, name = 78, "OFFSET_NOT_AVAILABLE"


class PreferredLeaderNotAvailableError(LogbusError):
    code, name = 80, "PREFERRED_LEADER_NOT_AVAILABLE"


class EligibleLeadersNotAvailableError(LogbusError):
    code, name = 83, "ELIGIBLE_LEADERS_NOT_AVAILABLE"


class ElectionNotNeededError(LogbusError):
    code, name = 84, "ELECTION_NOT_NEEDED"


class NoReassignmentInProgressError(LogbusError):
    code, name = 85, "NO_REASSIGNMENT_IN_PROGRESS"


class InvalidRecordError(LogbusError):
    code, name = 87, "INVALID_RECORD"


class InvalidUpdateVersionError(LogbusError):
    code, name = 95, "INVALID_UPDATE_VERSION"


class UnknownTopicIdError(RetriableError):
    """The topic was deleted, or made again under the same name: that is another topic."""

    code, name = 100, "UNKNOWN_TOPIC_ID"


class BrokerIdNotRegisteredError(LogbusError):
    code, name = 102, "BROKER_ID_NOT_REGISTERED"


class InconsistentClusterIdError(LogbusError):
    """A data directory, a broker or a client belongs to another cluster."""

    code, name = 104, "INCONSISTENT_CLUSTER_ID"


class ProtocolError(LogbusError):
    """A frame that no rule of the protocol allows: too long, too short, or lying."""

    code, name = 10001, "PROTOCOL_ERROR"


class DataLossError(LogbusError):
    """Records that were promised to a reader are gone; the message names the lost ranges."""

    code, name = 10002, "DATA_LOSS"


class DeliveryTimedOutError(LogbusError):
    """A record was not acknowledged before the delivery deadline; it may yet be in the log."""

    code, name, definite = 10003, "DELIVERY_TIMED_OUT", False


class BufferFullError(LogbusError):
    """The producer's memory stayed full for the longest time that ``send`` may block."""

    code, name = 10004, "BUFFER_FULL"


class NoBrokersError(RetriableError):
    """None of the bootstrap addresses answered."""

    code, name = 10005, "NO_BROKERS"


class SourceUnreachableError(NoBrokersError):
    """The cluster that a mirror copies does not answer: another's, which no ``up`` here starts."""

    name = "SOURCE_UNREACHABLE"


class CoordinationUnavailableError(RetriableError):
    """ZooKeeper does not answer; what needs it waits, what does not goes on."""

    code, name = 10006, "COORDINATION_UNAVAILABLE"


class WriteConflictError(RetriableError):
    """A compare-and-set of a znode found another version, or its fence was passed."""

    code, name = 10007, "WRITE_CONFLICT"


class DirectoryLockedError(LogbusError):
    """Another live process holds the data directory."""

    code, name = 10008, "DIRECTORY_LOCKED"


class StaleDirectoryError(LogbusError):
    """A data directory is older than the registry knows: it was rolled back or copied."""

    code, name = 10009, "STALE_DIRECTORY"


class BrokerIdTakenError(LogbusError):
    """Another live broker is registered under this id."""

    code, name = 10010, "BROKER_ID_TAKEN"


class CompactionNotBuiltError(InvalidConfigError):
    """``cleanup.policy=compact`` is not built yet; it is refused rather than ignored."""

    name = "COMPACTION_NOT_BUILT"


class MissingDependencyError(LogbusError):
    """Java, ZooKeeper's jars or an optional package is missing; the message says which extra."""

    code, name = 10011, "MISSING_DEPENDENCY"


class PortInUseError(LogbusError):
    code, name = 10012, "PORT_IN_USE"


class NoClusterError(LogbusError):
    """No option, environment variable or running ``logbus up`` names a cluster."""

    code, name = 10013, "NO_CLUSTER"


class InvalidSchemaError(LogbusError):
    """A DataFrame's or a user's columns are not those that logbus reads and writes."""

    code, name = 10014, "INVALID_SCHEMA"


class NullTopicError(LogbusError):
    code, name = 10015, "NULL_TOPIC"


class GroupLeaseHeldError(LogbusError):
    """Another running query publishes its progress to this group."""

    code, name = 10016, "GROUP_LEASE_HELD"


class ClosedError(LogbusError):
    """The producer, consumer or connection was closed."""

    code, name = 10017, "CLOSED"


class NotOwnerError(LogbusError):
    """A commit of a partition that the consumer does not own (any more): its next owner goes on
    from the offset that was committed before."""

    code, name = 10018, "NOT_OWNER"


_DEFAULT_MESSAGES: dict[str, str] = {
    "UNKNOWN_SERVER_ERROR": "the broker met an error that it has no name for; see its log",
    "UNKNOWN_TOPIC_OR_PARTITION": "this broker does not know that topic or partition",
    "NOT_LEADER_OR_FOLLOWER": "this broker does not lead that partition; refresh the metadata",
    "LEADER_NOT_AVAILABLE": "no in-sync replica of that partition is alive",
    "OFFSET_OUT_OF_RANGE": "that offset is not in the log",
    "CORRUPT_MESSAGE": "the batch's checksum or structure is wrong",
    "REQUEST_TIMED_OUT": "the request was not completed in time; it may have taken effect",
    "NOT_CONTROLLER": "this broker is not the controller; ask the one that the metadata names",
}


def _rows(root: type[LogbusError]) -> list[type[LogbusError]]:
    rows = []
    for child in root.__subclasses__():
        if child is not RetriableError and "name" in child.__dict__:
            rows.append(child)
        rows.extend(_rows(child))
    return rows


TABLE: tuple[type[LogbusError], ...] = tuple(
    sorted(_rows(LogbusError), key=lambda row: (row.code, row.name))
)
"""Every error class, by code."""

NO_ERROR = 0
_BY_CODE: dict[int, type[LogbusError]] = {}
for _row in TABLE:
    _BY_CODE.setdefault(_row.code, _row)
_BY_CODE[40] = InvalidConfigError


def error_for(code: int, message: str = "") -> LogbusError:
    """The error that a wire code stands for; an unknown code keeps its number in the message."""
    row = _BY_CODE.get(code)
    if row is None:
        return UnknownServerError(f"error code {code}: {message or 'not in the table of logbus'}")
    return row(message)


_ON_THE_WIRE = {
    CoordinationUnavailableError.code: CoordinatorNotAvailableError.code,
    WriteConflictError.code: CoordinatorNotAvailableError.code,
}


def wire_code(error: LogbusError) -> int:
    """The code to answer on a Kafka API. Ours have no meaning there: what passes by itself
    becomes COORDINATOR_NOT_AVAILABLE, which every client tries again, and the rest -1."""
    if error.code < 10000:
        return error.code
    return _ON_THE_WIRE.get(error.code, UnknownServerError.code)
