"""Every error that logbus raises on purpose, one class each.

- ``code``: Kafka's error code, -1 to 199, or a code of logbus alone, 10000 and above.
- ``name``: Kafka's name of the error. ``str(error)`` begins with ``[LOGBUS_<name>]``, so that users
  find the error in a Spark stack trace.
- ``retriable``: whether the same request may succeed later.
- ``definite``: whether the failed request certainly had no effect.

A message names the object and its value, the reason and the next step. Errors can be pickled.
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
    """Base of errors after which a retry may succeed. If the error concerns a leader or a
    coordinator, look that broker up again before the retry."""

    retriable = True


class UnknownServerError(LogbusError):
    code, name, definite = -1, "UNKNOWN_SERVER_ERROR", False


class OffsetOutOfRangeError(LogbusError):
    code, name = 1, "OFFSET_OUT_OF_RANGE"


class CorruptMessageError(RetriableError):
    code, name = 2, "CORRUPT_MESSAGE"


class UndecodableBatchError(CorruptMessageError):
    """The records of a batch cannot be decoded, although the batch has a correct CRC. The producer
    sent these bytes, so every replica has them, and no disk is damaged."""

    name = "UNDECODABLE_BATCH"


class UnknownTopicOrPartitionError(RetriableError):
    code, name = 3, "UNKNOWN_TOPIC_OR_PARTITION"


class LeaderNotAvailableError(RetriableError):
    code, name = 5, "LEADER_NOT_AVAILABLE"


class NotLeaderError(RetriableError):
    """The broker does not lead the partition. A failed produce request may have taken effect,
    because a leader can append the batch and lose its leadership before it answers."""

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
    """The connection broke or could not be opened. Requests in flight may have taken effect."""

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
    """A native member (``coordination="zookeeper"``) joined a Kafka group, or a Kafka member joined
    a native group."""

    code, name = 23, "INCONSISTENT_GROUP_PROTOCOL"


class InvalidGroupIdError(LogbusError):
    code, name = 24, "INVALID_GROUP_ID"


class UnknownMemberIdError(LogbusError):
    code, name = 25, "UNKNOWN_MEMBER_ID"


class InvalidSessionTimeoutError(LogbusError):
    code, name = 26, "INVALID_SESSION_TIMEOUT"


class RebalanceInProgressError(LogbusError):
    code, name = 27, "REBALANCE_IN_PROGRESS"


class TopicAuthorizationError(LogbusError):
    code, name = 29, "TOPIC_AUTHORIZATION_FAILED"


class GroupAuthorizationError(LogbusError):
    code, name = 30, "GROUP_AUTHORIZATION_FAILED"


class ClusterAuthorizationError(LogbusError):
    code, name = 31, "CLUSTER_AUTHORIZATION_FAILED"


class InvalidTimestampError(LogbusError):
    """A record's timestamp is outside the bounds of message.timestamp.before.max.ms or
    message.timestamp.after.max.ms."""

    code, name = 32, "INVALID_TIMESTAMP"


class UnsupportedSaslMechanismError(LogbusError):
    code, name = 33, "UNSUPPORTED_SASL_MECHANISM"


class IllegalSaslStateError(LogbusError):
    """A client sent a SASL request out of order, or another request before its login."""

    code, name = 34, "ILLEGAL_SASL_STATE"


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
    """A setting is unknown, has a wrong value, or contradicts another setting."""

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


class InvalidProducerIdMappingError(LogbusError):
    """The coordinator does not know the transactional id, or knows it with another producer id."""

    code, name = 49, "INVALID_PRODUCER_ID_MAPPING"


class InvalidTransactionTimeoutError(LogbusError):
    """A producer's transaction.timeout.ms is zero, negative or above the broker's
    transaction.max.timeout.ms."""

    code, name = 50, "INVALID_TRANSACTION_TIMEOUT"


class ConcurrentTransactionsError(RetriableError):
    """The previous transaction of the transactional id is still ending: some of its partitions have
    no commit or abort marker yet."""

    code, name = 51, "CONCURRENT_TRANSACTIONS"


class TransactionCoordinatorFencedError(LogbusError):
    """A transaction coordinator sent a marker or a request with an outdated coordinator epoch:
    another broker coordinates the transactional id now."""

    code, name = 52, "TRANSACTION_COORDINATOR_FENCED"


class TransactionalIdAuthorizationError(LogbusError):
    code, name = 53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


class SecurityDisabledError(LogbusError):
    code, name = 54, "SECURITY_DISABLED"


class OperationNotAttemptedError(LogbusError):
    """The broker did not carry out this part of a request, such as one of several users, because
    another part failed."""

    code, name = 55, "OPERATION_NOT_ATTEMPTED"


class StorageError(RetriableError):
    """A data directory is offline: an fsync failed, the disk is full, or the disk is missing."""

    code, name, definite = 56, "KAFKA_STORAGE_ERROR", False


class UnreadableRecordsError(StorageError):
    """The disk could not read stored records at or after ``offset`` (-1: unknown). Other replicas
    may have these records."""

    def __init__(self, message: str = "", offset: int = -1) -> None:
        super().__init__(message)
        self.offset = offset


class SaslAuthenticationError(LogbusError):
    """A login failed. A broker sends the same error for every reason, such as an unknown user or a
    wrong password, so that an attacker learns nothing. The broker's audit log has the reason."""

    code, name = 58, "SASL_AUTHENTICATION_FAILED"


class UnknownProducerIdError(LogbusError):
    code, name = 59, "UNKNOWN_PRODUCER_ID"


class NonEmptyGroupError(LogbusError):
    code, name = 68, "NON_EMPTY_GROUP"


class GroupIdNotFoundError(LogbusError):
    code, name = 69, "GROUP_ID_NOT_FOUND"


class MemberIdRequiredError(LogbusError):
    """The coordinator's answer to a member's first JoinGroup, with a member id. The member joins
    again with that id (KIP-394)."""

    code, name = 79, "MEMBER_ID_REQUIRED"


class GroupMaxSizeReachedError(LogbusError):
    code, name = 81, "GROUP_MAX_SIZE_REACHED"


class FencedInstanceIdError(LogbusError):
    """Another process joined with the same group.instance.id and replaced this member."""

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


class UnstableOffsetCommitError(RetriableError):
    """The committed offset of the partition is not final: an open transaction has written an offset
    of the same group and partition."""

    code, name = 88, "UNSTABLE_OFFSET_COMMIT"


class ThrottlingQuotaExceededError(RetriableError):
    code, name = 89, "THROTTLING_QUOTA_EXCEEDED"


class ProducerFencedError(LogbusError):
    """Another producer with the same transactional id was initialised after this one, or the
    transaction timed out. This producer cannot continue."""

    code, name = 90, "PRODUCER_FENCED"


class ResourceNotFoundError(LogbusError):
    code, name = 91, "RESOURCE_NOT_FOUND"


class DuplicateResourceError(LogbusError):
    code, name = 92, "DUPLICATE_RESOURCE"


class UnacceptableCredentialError(LogbusError):
    code, name = 93, "UNACCEPTABLE_CREDENTIAL"


class InvalidUpdateVersionError(LogbusError):
    code, name = 95, "INVALID_UPDATE_VERSION"


class UnknownTopicIdError(RetriableError):
    """The topic with this id was deleted. A topic recreated under the same name has another id."""

    code, name = 100, "UNKNOWN_TOPIC_ID"


class BrokerIdNotRegisteredError(LogbusError):
    code, name = 102, "BROKER_ID_NOT_REGISTERED"


class InconsistentClusterIdError(LogbusError):
    """Two ids of a cluster differ: the id that a data directory, broker or client has stored, and
    the id of the cluster to which it connects."""

    code, name = 104, "INCONSISTENT_CLUSTER_ID"


class TransactionalIdNotFoundError(LogbusError):
    code, name = 105, "TRANSACTIONAL_ID_NOT_FOUND"


class TransactionAbortableError(LogbusError):
    """The transaction cannot commit. The producer must abort it, and can then begin another."""

    code, name = 120, "TRANSACTION_ABORTABLE"


class InvalidRegularExpressionError(LogbusError):
    code, name = 128, "INVALID_REGULAR_EXPRESSION"


class ProtocolError(LogbusError):
    """A request or an answer violates the protocol: the frame is too long or too short, or a length
    or count in it is wrong."""

    code, name = 10001, "PROTOCOL_ERROR"


class DataLossError(LogbusError):
    """Retention or a user deleted records before the reader read them. The message names the offset
    ranges."""

    code, name = 10002, "DATA_LOSS"


class DeliveryTimedOutError(LogbusError):
    """A record was not acknowledged within delivery.timeout.ms. The record may be in the log."""

    code, name, definite = 10003, "DELIVERY_TIMED_OUT", False


class BufferFullError(LogbusError):
    """The producer's buffer (buffer.memory) stayed full for max.block.ms."""

    code, name = 10004, "BUFFER_FULL"


class NoBrokersError(RetriableError):
    """No bootstrap server answered."""

    code, name = 10005, "NO_BROKERS"


class SourceUnreachableError(NoBrokersError):
    """The source cluster of a mirror (``logbus mirror``) does not answer. The command line then
    leaves out its advice for NoBrokersError, which applies only to a local cluster."""

    name = "SOURCE_UNREACHABLE"


class CoordinationUnavailableError(RetriableError):
    """ZooKeeper does not answer. Only requests that write metadata or offsets fail; produce and
    fetch requests continue."""

    code, name = 10006, "COORDINATION_UNAVAILABLE"


class WriteConflictError(RetriableError):
    """A compare-and-set write of a znode failed in every attempt, because each time another process
    had changed the znode since it was read."""

    code, name = 10007, "WRITE_CONFLICT"


class DirectoryLockedError(LogbusError):
    """Another process holds the lock of the data directory."""

    code, name = 10008, "DIRECTORY_LOCKED"


class StaleDirectoryError(LogbusError):
    """The data directory is a copy, or was restored from a backup: its start counter shows that a
    broker has started with another copy since."""

    code, name = 10009, "STALE_DIRECTORY"


class BrokerIdTakenError(LogbusError):
    """Another live broker is registered under this id."""

    code, name = 10010, "BROKER_ID_TAKEN"


class CompactionNotBuiltError(InvalidConfigError):
    """``cleanup.policy=compact`` is not supported."""

    name = "COMPACTION_NOT_BUILT"


class MissingDependencyError(LogbusError):
    """Java, ZooKeeper's jars or an optional Python package is missing. The message says how to
    install it."""

    code, name = 10011, "MISSING_DEPENDENCY"


class PortInUseError(LogbusError):
    code, name = 10012, "PORT_IN_USE"


class NoClusterError(LogbusError):
    """No option, environment variable or running ``logbus up`` names a cluster."""

    code, name = 10013, "NO_CLUSTER"


class InvalidSchemaError(LogbusError):
    """A DataFrame or a schema from the user has a column with a name or a type that logbus does not
    accept."""

    code, name = 10014, "INVALID_SCHEMA"


class NullTopicError(LogbusError):
    code, name = 10015, "NULL_TOPIC"


class GroupLeaseHeldError(LogbusError):
    """Another running Spark query already commits its progress to this consumer group."""

    code, name = 10016, "GROUP_LEASE_HELD"


class ClosedError(LogbusError):
    """The producer, consumer or connection was closed."""

    code, name = 10017, "CLOSED"


class NotOwnerError(LogbusError):
    """The consumer committed an offset of a partition that it does not own. The commit has no
    effect: the partition's owner continues from the previously committed offset."""

    code, name = 10018, "NOT_OWNER"


class SinkAheadOfCheckpointError(LogbusError):
    """A Spark query writes a batch, but its exactly-once sink has already committed a later batch:
    the query's checkpoint is older than the sink."""

    code, name = 10019, "SINK_AHEAD_OF_CHECKPOINT"


class SinkRowsDifferError(LogbusError):
    """A Spark query replays a batch that its exactly-once sink has committed, but now the batch has
    another number of rows."""

    code, name = 10020, "SINK_ROWS_DIFFER"


class FencedError(LogbusError):
    """A newer producer uses this producer's transactional id. This producer cannot continue."""

    code, name = 10021, "FENCED"


class TransactionAbortedError(LogbusError):
    """The transaction was aborted. Consumers with read_committed never see its records, and its
    offsets are not committed. Begin a new transaction."""

    code, name = 10022, "TRANSACTION_ABORTED"


class UnknownOutcomeError(LogbusError):
    """The coordinator did not answer a commit or an abort, so the outcome is unknown. Repeat the
    same call: a repeat never affects another transaction."""

    code, name, definite = 10023, "UNKNOWN_OUTCOME", False


class TlsError(LogbusError):
    """A TLS handshake failed, or only one end of the connection uses TLS. The message names the
    certificate or the setting."""

    code, name = 10024, "TLS_FAILED"


class ContextNotFoundError(LogbusError):
    """``contexts.toml`` has no context (address and login of a cluster) of this name."""

    code, name = 10030, "CONTEXT_NOT_FOUND"


class ReadOnlyContextError(LogbusError):
    """The command changes a cluster whose context (its entry in ``contexts.toml``) was created with
    ``--read-only``."""

    code, name = 10031, "READ_ONLY_CONTEXT"


class SearchLimitError(LogbusError):
    """The console already runs the maximum number of searches, live tails or downloads."""

    code, name = 10032, "SEARCH_LIMIT"


_ALLOW = "a user with ALTER on the cluster can allow it with: logbus acl add"
_DEFAULT_MESSAGES: dict[str, str] = {
    "TOPIC_AUTHORIZATION_FAILED": f"the user may not do this with the topic; {_ALLOW}",
    "GROUP_AUTHORIZATION_FAILED": f"the user may not do this with the group; {_ALLOW}",
    "CLUSTER_AUTHORIZATION_FAILED": f"the user may not do this with the cluster; {_ALLOW}",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"the user may not use the transactional id; {_ALLOW}",
    "UNKNOWN_SERVER_ERROR": "unexpected error in the broker; see the broker's log",
    "UNKNOWN_TOPIC_OR_PARTITION": "this broker does not know the topic or partition",
    "NOT_LEADER_OR_FOLLOWER": "this broker does not lead the partition; refresh the metadata",
    "LEADER_NOT_AVAILABLE": "no in-sync replica of the partition is alive; start its brokers",
    "OFFSET_OUT_OF_RANGE": "the offset is outside the log",
    "CORRUPT_MESSAGE": "the batch has a wrong checksum or structure",
    "REQUEST_TIMED_OUT": "the request timed out; it may have taken effect",
    "MESSAGE_TOO_LARGE": "the batch is larger than the topic's max.message.bytes; raise it, or "
    "send smaller records",
    "COORDINATOR_LOAD_IN_PROGRESS": "the coordinator reads its state; try again",
    "NOT_COORDINATOR": "this broker no longer coordinates it; try again",
    "COORDINATOR_NOT_AVAILABLE": "no broker coordinates it now, or ZooKeeper does not answer; find "
    "the cause with: logbus health",
    "NOT_ENOUGH_REPLICAS": "fewer replicas than min.insync.replicas are in sync; find the missing "
    "brokers with: logbus health",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "a replica left the in-sync replicas after the append; the "
    "records may be in the log. Find the missing brokers with: logbus health",
    "ILLEGAL_GENERATION": "the group has begun a later generation than the member's",
    "INCONSISTENT_GROUP_PROTOCOL": "the members have no common assignor, or the group is of the "
    "other kind (Kafka or native); use another group",
    "UNKNOWN_MEMBER_ID": "the group does not have this member: its session expired, or the group "
    "has other members; see: logbus groups members GROUP",
    "INVALID_SESSION_TIMEOUT": "session.timeout.ms is outside the broker's "
    "group.min.session.timeout.ms and group.max.session.timeout.ms",
    "REBALANCE_IN_PROGRESS": "the group assigns its partitions anew; poll, and commit again",
    "FENCED_INSTANCE_ID": "another process has joined with this group.instance.id; give each "
    "process an id of its own",
    "GROUP_MAX_SIZE_REACHED": "the group or its coordinator has its maximum number of members",
    "NON_EMPTY_GROUP": "the group has live members or a running Spark query; stop them first",
    "GROUP_ID_NOT_FOUND": "no group has this name; see: logbus groups list",
    "GROUP_SUBSCRIBED_TO_TOPIC": "live members of the group read the topic; stop them first",
    "TRANSACTIONAL_ID_NOT_FOUND": "no coordinator knows the transactional id; see: logbus "
    "transactions list",
    "KAFKA_STORAGE_ERROR": "the data directory of the broker is offline: its disk failed or is "
    "full; the broker's log has the reason",
    "UNKNOWN_TOPIC_ID": "the topic was deleted; a new topic of the same name has another id",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "an earlier batch of the producer is missing; create a new "
    "producer",
    "NOT_CONTROLLER": "this broker is not the controller; send the request to the controller",
    "INVALID_PRODUCER_ID_MAPPING": "the transactional id expired or has another producer id; "
    "create a new producer",
    "INVALID_TRANSACTION_TIMEOUT": "transaction.timeout.ms is not between 1 and the broker's "
    "transaction.max.timeout.ms; lower transaction.timeout.ms",
    "CONCURRENT_TRANSACTIONS": "the previous transaction of this id has not ended yet; try again",
    "INVALID_GROUP_ID": "the group's name is empty or too long; give 1 to 750 characters (each "
    "that is not a letter, digit, - . _ or ~ counts 3 for each of its bytes)",
    "OFFSET_METADATA_TOO_LARGE": "the metadata of the offset has more bytes than the broker's "
    "offset.metadata.max.bytes (4096 by default); commit less metadata",
    "UNSTABLE_OFFSET_COMMIT": "a transaction that has not ended wrote this offset; try again",
    "PRODUCER_FENCED": "another producer with this transactional id has begun, or the transaction "
    "timed out; create a new producer, and give each live producer an id of its own",
    "TRANSACTION_ABORTABLE": "the transaction cannot commit; abort it and begin a new one",
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
"""Every error class, in the order of the codes."""

NO_ERROR = 0
_BY_CODE: dict[int, type[LogbusError]] = {}
for _row in TABLE:
    _BY_CODE.setdefault(_row.code, _row)
_BY_CODE[40] = InvalidConfigError


def error_for(code: int, message: str | None = "") -> LogbusError:
    """Return an error of the class that has this code in Kafka's protocol; for an unknown code an
    UnknownServerError, with the code in its message."""
    row = _BY_CODE.get(code)
    if row is None:
        return UnknownServerError(f"error code {code}: {message or 'unknown to logbus'}")
    return row(message or "")


def error_of(code: int, message: str | None = "") -> LogbusError | None:
    """Return the error of a response's error code; None for 0, which means success."""
    return error_for(code, message) if code else None


def raise_for(code: int, message: str | None = "") -> None:
    """Raise the error of a response's error code, unless the code is 0."""
    if code:
        raise error_for(code, message)


_ON_THE_WIRE = {
    CoordinationUnavailableError.code: CoordinatorNotAvailableError.code,
    WriteConflictError.code: CoordinatorNotAvailableError.code,
}


def wire_code(error: LogbusError | None) -> int:
    """Return the code with which a broker reports an error to a client in Kafka's protocol; 0,
    which means success, for None.

    Kafka's clients do not know logbus's own codes, 10000 and above. Of these, the errors about
    ZooKeeper become COORDINATOR_NOT_AVAILABLE, which clients retry. The others become -1."""
    if error is None:
        return NO_ERROR
    if error.code < 10000:
        return error.code
    return _ON_THE_WIRE.get(error.code, UnknownServerError.code)
