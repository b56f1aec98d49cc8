"""The cause and the cure of every error, by name, for the reference of errors.

``tests/docs/test_site.py`` compares this table with ``broker_lite.errors.TABLE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Text(NamedTuple):
    """The cause of an error, and the reader's next step."""

    cause: str
    cure: str


NO_TEXT = Text("", "")
"""The entry of an error that the table lacks; a test reports it."""

_RETRIED = "Clients retry by themselves."
_LOAD = "Wait. Clients retry by themselves until `delivery.timeout.ms` or the call's deadline."
_METADATA = "Clients refresh their metadata and retry."
_REPORT = "Report it with the broker's log: a client of logbus does not cause it."

ERROR_TEXTS: Mapping[str, Text] = {
    "UNKNOWN_SERVER_ERROR": Text(
        "The broker met an error that it did not expect, or another broker sent an unknown code.",
        "Read `broker.log` at the time of the request and report the stack trace.",
    ),
    "OFFSET_OUT_OF_RANGE": Text(
        "A consumer asked for an offset before the log's start, which retention moved, or beyond "
        "its end.",
        "Set `start` to `earliest` or `latest`, or move the group: `logbus groups reset-offsets`. "
        "Lengthen `retention.ms` if readers fall this far behind.",
    ),
    "CORRUPT_MESSAGE": Text(
        "The checksum or the structure of a batch is wrong: the disk or the network changed bytes.",
        "A replicated partition is repaired from another replica in sync. Without one, run "
        '`logbus storage verify DIR`; readers skip the batch with `on_corrupt="skip"` or '
        "`failOnDataLoss=false`. New replicas cannot skip it: start a broker that has a copy, or "
        "delete the records up to the end of the batch, which `logbus storage inspect` shows: "
        "`logbus topic trim TOPIC --before OFFSET --partition N`.",
    ),
    "UNDECODABLE_BATCH": Text(
        "A batch has a correct checksum, but its records cannot be decoded. The producer wrote it "
        "so; every replica holds the same bytes.",
        'Skip the batch with `on_corrupt="skip"`, and mend the producer that the message names.',
    ),
    "UNKNOWN_TOPIC_OR_PARTITION": Text(
        "The topic does not exist, has fewer partitions, or was just created or deleted.",
        "List topics with `logbus topic list`. Create the topic: `logbus topic create NAME -p 3`. "
        "By default brokers create no topic by themselves.",
    ),
    "LEADER_NOT_AVAILABLE": Text(
        "No in-sync replica of the partition is alive, so none may lead.",
        "Start the brokers that `logbus health` names. If their disks are lost for ever, see "
        "[a lost disk](../operations/drill.md#a-disk-is-lost).",
    ),
    "NOT_LEADER_OR_FOLLOWER": Text(
        "The request reached a broker that no longer leads the partition.",
        _METADATA + " If the error stays, `logbus health` names partitions without a leader.",
    ),
    "REQUEST_TIMED_OUT": Text(
        "A broker did not answer in time. The request may have taken effect.",
        "Check the load of the broker (`logbus health`). Raise `request.timeout.ms` for slow "
        "networks. Idempotent producers retry without duplicates.",
    ),
    "BROKER_NOT_AVAILABLE": Text(
        "The broker that a request names is not registered in ZooKeeper.",
        "Check that its process runs, and read its log.",
    ),
    "MESSAGE_TOO_LARGE": Text(
        "A record is larger than the producer's `max.request.size`, or a batch is larger than the "
        "topic's `max.message.bytes`.",
        "Raise both settings, or store large values elsewhere and send a reference.",
    ),
    "OFFSET_METADATA_TOO_LARGE": Text(
        "The metadata of an offset commit exceeds 4 KiB.",
        "Commit less metadata.",
    ),
    "NETWORK_EXCEPTION": Text(
        "A connection could not be opened, or broke while requests were unanswered.",
        "Check the address and that the broker runs: `logbus health -b HOST:PORT`. " + _RETRIED,
    ),
    "COORDINATOR_LOAD_IN_PROGRESS": Text(
        "A broker has just taken over the group or transactional id and reads its state.",
        _LOAD,
    ),
    "COORDINATOR_NOT_AVAILABLE": Text(
        "No broker can coordinate the group now, for example because ZooKeeper does not answer.",
        _LOAD + " If it lasts, check ZooKeeper with `logbus health`.",
    ),
    "NOT_COORDINATOR": Text(
        "The request reached a broker that no longer coordinates the group or transactional id.",
        _METADATA,
    ),
    "INVALID_TOPIC_EXCEPTION": Text(
        "A topic's name is empty, longer than 249 characters, or has other characters than letters, "
        "digits, dot, underscore and hyphen.",
        "Choose another name.",
    ),
    "RECORD_LIST_TOO_LARGE": Text(
        "A broker of Kafka refused a batch larger than the topic's `segment.bytes`. Brokers of "
        "logbus accept such a batch.",
        "Lower the producer's `batch.size`, or raise the topic's `segment.bytes`.",
    ),
    "NOT_ENOUGH_REPLICAS": Text(
        "Fewer replicas than `min.insync.replicas` are in sync, so the leader refuses `acks=all`.",
        "Start the missing brokers (`logbus health`). Producers retry until their delivery "
        "timeout. If the message names damage in the leader's log, see CORRUPT_MESSAGE.",
    ),
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": Text(
        "A replica left the in-sync replicas after the leader had appended the batch.",
        "Start the missing brokers. The producer retries without duplicates.",
    ),
    "INVALID_REQUIRED_ACKS": Text(
        "`acks` is not 0, 1 or all.",
        "Set `acks=all`, the default.",
    ),
    "ILLEGAL_GENERATION": Text(
        "A member of a group used the generation of an earlier rebalance.",
        "Members join again by themselves. If it repeats, a reader works longer than "
        "`max.poll.interval.ms`.",
    ),
    "INCONSISTENT_GROUP_PROTOCOL": Text(
        "A member joined a group of the other kind (Kafka or native), or no assignor is common to "
        "all members.",
        "Use the same `coordination` and a common assignor in all members, or another group.",
    ),
    "INVALID_GROUP_ID": Text(
        "The group's name is empty, or longer than 750 characters. Each character that is not a "
        "letter, digit, - . _ or ~ counts 3 for each of its bytes in UTF-8.",
        "Choose another name.",
    ),
    "UNKNOWN_MEMBER_ID": Text(
        "The coordinator does not know the member: its session expired, or the coordinator changed. "
        "Or a client that is no member commits to a group that has members.",
        "Members join again by themselves. Stop the members before a client that is no member commits.",
    ),
    "INVALID_SESSION_TIMEOUT": Text(
        "`session.timeout.ms` is outside the broker's `group.min.session.timeout.ms` and "
        "`group.max.session.timeout.ms`.",
        "Choose a value between them.",
    ),
    "REBALANCE_IN_PROGRESS": Text(
        "The group's partitions are being assigned anew.",
        "Poll, and commit again afterwards.",
    ),
    "TOPIC_AUTHORIZATION_FAILED": Text(
        "The user may not do this with the topic.",
        "Ask an administrator for an access control list that allows the operation.",
    ),
    "THROTTLING_QUOTA_EXCEEDED": Text(
        "The client has created or deleted more partitions than its quota "
        "`controller_mutation_rate` allows.",
        "Try again after the time that the message names, or raise the quota with "
        "`logbus quota set`.",
    ),
    "GROUP_AUTHORIZATION_FAILED": Text(
        "The user may not use the consumer group.",
        "Ask for Read on the group, or use a group that the user may read.",
    ),
    "CLUSTER_AUTHORIZATION_FAILED": Text(
        "The user may not perform this operation of the cluster.",
        "Run it as an administrator, or ask for an access control list on the cluster.",
    ),
    "INVALID_TIMESTAMP": Text(
        "A record's timestamp is further from the broker's clock than "
        "`message.timestamp.before.max.ms` or `message.timestamp.after.max.ms` allow.",
        "Correct the producer's clock, or widen the topic's bounds.",
    ),
    "UNSUPPORTED_SASL_MECHANISM": Text(
        "The client's `sasl.mechanism` is not in the broker's `sasl.enabled.mechanisms`.",
        "Set `sasl.mechanism=SCRAM-SHA-256`, or enable the mechanism on the brokers.",
    ),
    "ILLEGAL_SASL_STATE": Text(
        "A client sent another request before its login, or a SASL request out of order.",
        "Set `security.protocol=SASL_SSL` or `SASL_PLAINTEXT`, as the listener requires.",
    ),
    "UNSUPPORTED_VERSION": Text(
        "The broker does not have the API, its version, or the feature that the request needs.",
        "Upgrade the older side. The [protocol](protocol.md) lists APIs and versions.",
    ),
    "TOPIC_ALREADY_EXISTS": Text(
        "A topic of this name exists, or is still being deleted.",
        "Use `--if-not-exists` or `if_not_exists=True`, or another name.",
    ),
    "INVALID_PARTITIONS": Text(
        "The number of partitions is not positive, too large, or below the present number.",
        "Give a larger number; partitions cannot be removed.",
    ),
    "INVALID_REPLICATION_FACTOR": Text(
        "The replication factor exceeds the number of live brokers.",
        "Start more brokers, or give a smaller factor.",
    ),
    "INVALID_REPLICA_ASSIGNMENT": Text(
        "An assignment names an unknown broker, the same broker twice, or lists of unequal length.",
        "Correct the assignment; `logbus topic describe NAME` shows the present one.",
    ),
    "COMPACTION_NOT_BUILT": Text(
        "`cleanup.policy=compact` was set, which logbus does not support.",
        "Use `cleanup.policy=delete` with `retention.ms=-1` to keep every record.",
    ),
    "INVALID_CONFIG": Text(
        "A setting is unknown, has a wrong value, or contradicts another.",
        "Follow the message; see the settings of [brokers](broker-settings.md), "
        "[topics](topic-settings.md) and [clients](client-settings.md), and "
        "[Spark's options](spark-options.md).",
    ),
    "NOT_CONTROLLER": Text(
        "An administrative request reached a broker that is not the controller.",
        _METADATA,
    ),
    "INVALID_REQUEST": Text(
        "A request contradicts itself, or names what the cluster does not have.",
        "Follow the message. " + _REPORT,
    ),
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": Text(
        "A client asked for columns, or sent them, to a cluster that stores rows only.",
        "Produce rows to Kafka; logbus brokers take both.",
    ),
    "POLICY_VIOLATION": Text(
        "A limit of the cluster refuses the request, for example the maximum number of "
        "transactional ids.",
        "Follow the message, which names the limit.",
    ),
    "OUT_OF_ORDER_SEQUENCE_NUMBER": Text(
        "An idempotent producer's batch arrived after a gap in its sequence.",
        "Close the producer and create a new one. Records before the gap are not acknowledged.",
    ),
    "DUPLICATE_SEQUENCE_NUMBER": Text(
        "The broker has stored this batch already, but remembers only the last five.",
        "Nothing: the record is in the log once.",
    ),
    "INVALID_PRODUCER_EPOCH": Text(
        "A producer used an epoch that a later producer of its transactional id has replaced.",
        "Stop this program, or give it a transactional id of its own.",
    ),
    "INVALID_TXN_STATE": Text(
        "A transaction received a request that its state does not allow, such as a second end. Or a "
        "partition's log has lost the end of the producer's former transaction.",
        "Abort, and begin a new transaction. If the error repeats, see `logbus transactions hanging`.",
    ),
    "INVALID_PRODUCER_ID_MAPPING": Text(
        "The transactional id expired, or its producer id changed.",
        "Create a new producer with the same transactional id.",
    ),
    "INVALID_TRANSACTION_TIMEOUT": Text(
        "`transaction.timeout.ms` is below 1 or above the broker's `transaction.max.timeout.ms`.",
        "Lower it, or raise the broker's maximum.",
    ),
    "CONCURRENT_TRANSACTIONS": Text(
        "The previous transaction of the id is still writing its markers.",
        _RETRIED,
    ),
    "TRANSACTION_COORDINATOR_FENCED": Text(
        "A former coordinator of the transaction sent a marker.",
        "Nothing: the present coordinator finishes the transaction.",
    ),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Text(
        "The user may not use the transactional id.",
        "Ask for Write on the transactional id.",
    ),
    "SECURITY_DISABLED": Text(
        "The cluster has no logins or no access control lists to show or change.",
        "Enable `sasl.enabled.mechanisms` or the authorizer on the brokers.",
    ),
    "OPERATION_NOT_ATTEMPTED": Text(
        "Another part of the same request failed, so this part was not carried out.",
        "Correct the other part, and repeat the request.",
    ),
    "KAFKA_STORAGE_ERROR": Text(
        "A data directory is offline: its disk is full, missing, or failed a flush. Or the disk "
        "failed a read.",
        "Read `broker.log`. Free space, or replace the disk and start the broker with an empty "
        "folder: it copies its replicas from the others.",
    ),
    "SASL_AUTHENTICATION_FAILED": Text(
        "The user is unknown, the password is wrong, or the access token is not accepted. "
        "Brokers give all three the same answer.",
        "Correct `sasl.username` and `sasl.password`. The broker's log has the reason.",
    ),
    "UNKNOWN_PRODUCER_ID": Text(
        "The broker has forgotten the producer after `producer.id.expiration.ms` of silence.",
        "Create a new producer.",
    ),
    "NON_EMPTY_GROUP": Text(
        "The group has live members or a running Spark query, so its offsets cannot be changed.",
        "Stop them first: `logbus groups members NAME` shows them.",
    ),
    "GROUP_ID_NOT_FOUND": Text(
        "No group has this name.",
        "List groups with `logbus groups list`.",
    ),
    "FENCED_LEADER_EPOCH": Text(
        "A client's metadata is older than the partition's last election.",
        _METADATA,
    ),
    "UNKNOWN_LEADER_EPOCH": Text(
        "A client knows a later election than the broker that it asked.",
        _METADATA,
    ),
    "UNSUPPORTED_COMPRESSION_TYPE": Text(
        "The batch is compressed with a codec that logbus does not read.",
        "Use `none`, `lz4`, `zstd`, `gzip` or `snappy`.",
    ),
    "STALE_BROKER_EPOCH": Text(
        "A request of a broker's earlier registration arrived after the broker registered again.",
        "Nothing: the broker repeats the request.",
    ),
    "OFFSET_NOT_AVAILABLE": Text(
        "A new leader does not know its high watermark yet.",
        _RETRIED,
    ),
    "MEMBER_ID_REQUIRED": Text(
        "The first answer to a joining member, with the id to join with.",
        "Members join again by themselves.",
    ),
    "PREFERRED_LEADER_NOT_AVAILABLE": Text(
        "The preferred replica is not alive or not in sync.",
        "Start its broker, wait for `logbus health --broker N --wait`, and elect again.",
    ),
    "GROUP_MAX_SIZE_REACHED": Text(
        "The group has `group.max.size` members, the metadata of its members exceed a limit, or "
        "its coordinator has the maximum number of groups.",
        "Use fewer members, or follow the message, which names the limit.",
    ),
    "FENCED_INSTANCE_ID": Text(
        "Another process joined with the same `group.instance.id`.",
        "Give each process an id of its own.",
    ),
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": Text(
        "No replica may become leader.",
        "Start the brokers that hold in-sync replicas: `logbus topic describe NAME`.",
    ),
    "ELECTION_NOT_NEEDED": Text(
        "The preferred replica leads already.",
        "Nothing.",
    ),
    "NO_REASSIGNMENT_IN_PROGRESS": Text(
        "The partition is not being moved, so there is nothing to cancel.",
        "Nothing; `logbus topic reassign` shows the moves in progress.",
    ),
    "GROUP_SUBSCRIBED_TO_TOPIC": Text(
        "Live members of the group read the topic, so its offsets cannot be deleted.",
        "Stop the members first.",
    ),
    "INVALID_RECORD": Text(
        "A batch has no records, is malformed, decompresses to too many bytes, or has a field that "
        "only brokers may set.",
        "Correct the producer; clients of logbus do not cause this error.",
    ),
    "UNSTABLE_OFFSET_COMMIT": Text(
        "A transaction that has not ended wrote an offset of the partition for the group.",
        "Wait for the end of the transaction. " + _RETRIED,
    ),
    "PRODUCER_FENCED": Text(
        "A later producer with the same transactional id has begun, or the transaction timed out.",
        "Stop this program, or give it a transactional id of its own. For long transactions raise "
        "`transaction.timeout.ms`.",
    ),
    "RESOURCE_NOT_FOUND": Text(
        "The user or other named object does not exist.",
        "Check the name: `logbus user list`.",
    ),
    "DUPLICATE_RESOURCE": Text(
        "The request names the same object twice, or the object exists.",
        "Name each object once.",
    ),
    "UNACCEPTABLE_CREDENTIAL": Text(
        "A password or the name of a user is not accepted, or the request came from another "
        "machine without TLS.",
        "Follow the message, which names the value.",
    ),
    "INVALID_UPDATE_VERSION": Text(
        "A feature level is unknown, or lower than the present one.",
        "Upgrade all brokers first; feature levels are never lowered.",
    ),
    "UNKNOWN_TOPIC_ID": Text(
        "The topic was deleted. A topic recreated under the same name has another id.",
        "Clients refresh their metadata. A stream that read the deleted topic reports data loss.",
    ),
    "BROKER_ID_NOT_REGISTERED": Text(
        "No broker has this id.",
        "List brokers with `logbus broker list`.",
    ),
    "INCONSISTENT_CLUSTER_ID": Text(
        "A data directory, a broker or a client belongs to another cluster.",
        "Check `log.dir` and `zookeeper.connect`, or the addresses in `bootstrap.servers`.",
    ),
    "TRANSACTIONAL_ID_NOT_FOUND": Text(
        "No coordinator knows the transactional id.",
        "List the ids with `logbus transactions list`.",
    ),
    "TRANSACTION_ABORTABLE": Text(
        "The transaction cannot commit.",
        "Abort it, and begin a new one with the same producer.",
    ),
    "INVALID_REGULAR_EXPRESSION": Text(
        "A pattern is not valid in the syntax of RE2.",
        "Correct the pattern; RE2 has no look-ahead and no back-references.",
    ),
    "PROTOCOL_ERROR": Text(
        "The bytes on a connection are not Kafka's protocol, or a length in them is wrong.",
        "Check that the port belongs to a broker and not to another service.",
    ),
    "DATA_LOSS": Text(
        "Records that a reader had not read yet were deleted, truncated or corrupt.",
        "The message names the offsets. Set `failOnDataLoss=false` to skip them, and lengthen "
        "`retention.ms`.",
    ),
    "DELIVERY_TIMED_OUT": Text(
        "A record was not acknowledged within `delivery.timeout.ms`. It may be in the log.",
        "Check the cluster with `logbus health`, then send the record again.",
    ),
    "BUFFER_FULL": Text(
        "The producer's `buffer.memory` stayed full for `max.block.ms`: brokers are slower than "
        "the program.",
        "Raise `buffer.memory`, add partitions, or slow the program.",
    ),
    "NO_BROKERS": Text(
        "No address of `bootstrap.servers` answered within five seconds.",
        "Start a cluster with `logbus up`, or correct the addresses. `logbus doctor` tests them.",
    ),
    "SOURCE_UNREACHABLE": Text(
        "The source cluster of `logbus mirror` does not answer.",
        "Correct `--from`, and check that this machine can reach the source.",
    ),
    "COORDINATION_UNAVAILABLE": Text(
        "ZooKeeper does not answer. Producing and fetching continue; elections, administration "
        "and offset commits wait.",
        "Restore ZooKeeper's quorum; see "
        "[the drill](../operations/drill.md#zookeeper-loses-its-quorum).",
    ),
    "WRITE_CONFLICT": Text(
        "Other writers changed the same znode during every attempt of a write.",
        _RETRIED,
    ),
    "DIRECTORY_LOCKED": Text(
        "Another broker process uses the data directory.",
        "Stop it, or give this broker another `log.dir`.",
    ),
    "STALE_DIRECTORY": Text(
        "The data directory is an older copy: its start counter is behind ZooKeeper's.",
        "Start the broker with an empty `log.dir`; it copies its replicas from the others.",
    ),
    "BROKER_ID_TAKEN": Text(
        "Another live broker has the same `broker.id`.",
        "Give each broker an id of its own.",
    ),
    "MISSING_DEPENDENCY": Text(
        "Java, ZooKeeper's jars or a Python package is missing.",
        "Install the extra that the message names, for example "
        "`pip install 'pyspark-logbus[all]'`, or Java 17. With `logbus up --zookeeper HOST:PORT`, a "
        "running ZooKeeper replaces the one that needs Java.",
    ),
    "PORT_IN_USE": Text(
        "Another process listens on the port.",
        "Choose another port (`--port 0`: any free one), or stop that process.",
    ),
    "NO_CLUSTER": Text(
        "No option, environment variable or running `logbus up` names a cluster.",
        "Run `logbus up -d`, or give `-b HOST:PORT`.",
    ),
    "INVALID_SCHEMA": Text(
        "The columns of a DataFrame or of `.schema(…)` are not those of logbus.",
        "Cast `key` and `value` to string or binary; see [Spark](../how-to/spark.md).",
    ),
    "NULL_TOPIC": Text(
        "A row has no topic: its `topic` column is null and the option `topic` is not set.",
        "Set the option `topic`, or fill the column.",
    ),
    "GROUP_LEASE_HELD": Text(
        "Another running Spark query commits its progress to this group.",
        "Give each query a `group.id` of its own, or stop the other query.",
    ),
    "CLOSED": Text(
        "The producer, consumer or connection was closed before the call.",
        "Create a new one; after a fork, create it in the child process.",
    ),
    "NOT_OWNER": Text(
        "A member committed an offset of a partition that the group has assigned to another.",
        "Nothing is lost: the owner continues from the last commit. Process records faster, or "
        "raise `max.poll.interval.ms`.",
    ),
    "SINK_AHEAD_OF_CHECKPOINT": Text(
        "An exactly-once sink has committed a later batch than the query writes: the checkpoint "
        "was set back.",
        "Restore the checkpoint, or start with a new one, whose rows are written again.",
    ),
    "SINK_ROWS_DIFFER": Text(
        "A replayed batch has another number of rows than the committed one: the source is not "
        "repeatable.",
        "Make the query deterministic; `onReplayMismatch` decides what happens otherwise.",
    ),
    "FENCED": Text(
        "A newer producer has this producer's transactional id.",
        "Stop this program: the other one continues.",
    ),
    "TRANSACTION_ABORTED": Text(
        "The transaction was aborted. None of its records and offsets is visible.",
        "Begin a new transaction, and send again.",
    ),
    "UNKNOWN_OUTCOME": Text(
        "The coordinator did not answer the end of a transaction in time.",
        "Call `commit()` again (or `abort()`, if that was called): a repeat cannot reach another "
        "transaction.",
    ),
    "CONTEXT_NOT_FOUND": Text(
        "No context has the name that `--context`, `LOGBUS_CONTEXT` or `logbus context use` gives.",
        "List contexts with `logbus context list`, or create one with `logbus context create`.",
    ),
    "READ_ONLY_CONTEXT": Text(
        "The command changes a cluster, and the context was created with `--read-only`.",
        "Name the cluster with `-b`, or use a context that may change it.",
    ),
    "SEARCH_LIMIT": Text(
        "The console already runs as many searches, exports or tails as it may.",
        "Wait until another page has its answer, or close a page with a live tail.",
    ),
    "TLS_FAILED": Text(
        "A TLS handshake failed, or only one side speaks TLS.",
        "Follow the message, which names the certificate or the setting; see "
        "[TLS](../how-to/tls.md#what-can-go-wrong).",
    ),
}
