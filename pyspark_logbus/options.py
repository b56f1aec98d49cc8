"""The table of all options of the source and the sink: name, spellings, check, default, effect.

An option belongs to one of four classes:

- logbus's own options, and options of Kafka that have the same effect here;
- options of Kafka without an effect: ignored, with one warning;
- options of Kafka that would change a query's result: refused, with the option to use instead;
- unknown options: refused, with the nearest known name.

Spark lower-cases the names and passes all values as text. ``DataSource.__init__`` calls ``parse``,
so ``load()`` fails early. ``read_options`` and ``write_options`` then make the settings of a reader
or a writer. This module runs on the driver only, and does no I/O apart from warnings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from broker_lite.client.client_config import JAAS
from broker_lite.config import nearest
from broker_lite.config.client_security import SECRET_KEYS, is_kafkas_handler
from broker_lite.errors import InvalidConfigError
from pyspark_logbus import offsets, security_options
from pyspark_logbus import option_values as kind
from pyspark_logbus.connection_security import query_security
from pyspark_logbus.offsets import OffsetSpec
from pyspark_logbus.query_options import ReadOptions, Topics, WriteOptions

log = logging.getLogger("pyspark_logbus")

Parser = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the source or the sink.

    ``spellings`` are other accepted names. ``reads`` and ``writes`` say whether the source and the
    sink accept the option. ``source`` marks the options that choose topics and offsets. Queries
    with equal values of all these options share a default consumer group.
    """

    name: str
    parse: Parser
    doc: str
    default: str = ""
    spellings: tuple[str, ...] = ()
    reads: bool = False
    writes: bool = False
    source: bool = False


def _both(name: str, parse: Parser, doc: str, default: str = "", *spellings: str) -> Option:
    return Option(name, parse, doc, default, spellings, reads=True, writes=True)


def _read(name: str, parse: Parser, doc: str, default: str = "", *spellings: str) -> Option:
    return Option(name, parse, doc, default, spellings, reads=True)


def _source(name: str, parse: Parser, doc: str, default: str = "") -> Option:
    return Option(name, parse, doc, default, reads=True, source=True)


def _write(name: str, parse: Parser, doc: str, default: str = "", *spellings: str) -> Option:
    return Option(name, parse, doc, default, spellings, writes=True)


OPTIONS: tuple[Option, ...] = (
    _both(
        "bootstrap.servers",
        kind.text,
        "host:port,… of one or more brokers of the cluster",
        "",
        "kafka.bootstrap.servers",
    ),
    _both(
        "zookeeper.connect",
        kind.text,
        "host:port,…/chroot of ZooKeeper, where the driver looks up the brokers once",
    ),
    _both(
        "client.id", kind.text, "client name in the broker's log", "logbus-spark", "kafka.client.id"
    ),
    _both(
        "request.timeout.ms",
        kind.whole(1, kind.INT_MAX),
        "longest wait for a broker's response (ms)",
        "30000",
        "kafka.request.timeout.ms",
    ),
    *(
        _both(name, kind.verbatim, doc, "", f"kafka.{name}")
        for name, doc in security_options.DOCS.items()
    ),
    _source("subscribe", kind.topics, "topics, separated by commas"),
    _source(
        "subscribePattern",
        kind.pattern,
        "regex that matches the whole topic name, in the syntax that Python and Java share",
    ),
    _source("assign", offsets.parse_assignment, 'JSON {"t":[0,1]}'),
    _source(
        "startingOffsets",
        kind.starting,
        "start of a query without a checkpoint: earliest, latest, group, JSON or a progress "
        "report's endOffset; default: latest in a stream, earliest in a batch",
    ),
    _source(
        "startingTimestamp",
        kind.timestamp,
        "start each partition at its first record at or after this time (ms)",
    ),
    _source(
        "startingOffsetsByTimestamp",
        offsets.parse_timestamps,
        'start of each partition by time: JSON {"t":{"0":1700000000000}} (ms)',
    ),
    _source(
        "startingOffsetsByTimestampStrategy",
        kind.one_of("error", "latest"),
        "for a partition without a record at or after the timestamp: error fails the query, latest "
        "starts at the end",
        "error",
    ),
    _source(
        "startingOffsetsFallback",
        kind.one_of("earliest", "latest"),
        "with startingOffsets=group: start of a partition without a committed offset",
        "earliest",
    ),
    _source(
        "newPartitionOffsets",
        kind.one_of("earliest", "latest"),
        "start of partitions that appear after the query's first start",
        "earliest",
    ),
    _source(
        "endingOffsets",
        kind.ending,
        "latest, JSON or a progress report's endOffset; batch only",
        "latest",
    ),
    _source(
        "endingTimestamp",
        kind.timestamp,
        "end each partition before its first record at or after this time (ms); batch only",
    ),
    _source(
        "endingOffsetsByTimestamp",
        offsets.parse_timestamps,
        'end of each partition by time: JSON {"t":{"0":1700000000000}} (ms); batch only',
    ),
    _read(
        "failOnDataLoss",
        kind.flag,
        "true: lost records fail the query; false: they are skipped, logged and counted",
        "true",
    ),
    _read("includeHeaders", kind.flag, "adds the headers column", "false"),
    _read(
        "group.id",
        kind.text,
        "consumer group to which the query commits its progress",
        "",
        "kafka.group.id",
    ),
    _read("groupIdPrefix", kind.text, "prefix of the default group's name", "spark"),
    _read(
        "maxOffsetsPerTrigger",
        kind.whole(1),
        "maximum rows per trigger, shared in proportion to each partition's backlog",
        "",
        "maxRowsPerTrigger",
    ),
    _read(
        "minOffsetsPerTrigger",
        kind.whole(1),
        "minimum rows per trigger; a trigger waits for them at most maxTriggerDelay",
    ),
    _read("maxTriggerDelay", kind.duration_ms, "longest wait for minOffsetsPerTrigger", "15m"),
    _read(
        "maxBytesPerTrigger",
        kind.whole(1),
        "maximum stored bytes per trigger, in whole record batches; at least one batch",
    ),
    _read("minPartitions", kind.whole(1), "minimum number of tasks; large ranges are split"),
    _read("maxPartitions", kind.whole(1), "maximum number of tasks; small ranges share a task"),
    _read("maxRecordsPerPartition", kind.whole(1), "maximum rows per task"),
    _read(
        "pollTimeoutMs",
        kind.whole(1),
        "a task that receives no data for this time (ms) fails",
        "120000",
        "kafkaConsumer.pollTimeoutMs",
    ),
    _read(
        "fetchOffset.numRetries", kind.whole(0), "retries of an offset lookup by the driver", "3"
    ),
    _read(
        "fetchOffset.retryIntervalMs",
        kind.whole(0),
        "pause before a retry of an offset lookup (ms)",
        "1000",
    ),
    _read(
        "metadata.max.age.ms",
        kind.whole(10),
        "maximum delay until the query finds new topics and partitions (ms)",
        "1000",
        "kafka.metadata.max.age.ms",
    ),
    _read(
        "isolation.level",
        kind.one_of("read_committed", "read_uncommitted"),
        "read_uncommitted also reads records of open and aborted transactions",
        "read_committed",
        "kafka.isolation.level",
    ),
    _read(
        "max.partition.fetch.bytes",
        kind.whole(1024, kind.INT_MAX),
        "maximum bytes of one partition in a fetch response",
        "4194304",
        "kafka.max.partition.fetch.bytes",
    ),
    _read(
        "localReads",
        kind.flag,
        "read the segment files of a broker on the same machine directly",
        "true",
    ),
    _read(
        "pushFilters",
        kind.no_pushed_filters,
        "only false: Spark 4.3.0 returns wrong rows with pushed filters; use logbus.read",
        "false",
    ),
    _write("topic", kind.text, "target topic; overrides the topic column"),
    _write(
        "useTimestampColumn",
        kind.flag,
        "use the timestamp column as the record timestamp",
        "false",
    ),
    _write("acks", kind.acks, "all: durable on every in-sync replica", "all", "kafka.acks"),
    _write(
        "compression.type",
        kind.compression,
        "none, lz4 or zstd; gzip becomes zstd and snappy lz4, with one warning",
        "none",
        "kafka.compression.type",
    ),
    _write(
        "batch.size",
        kind.whole(1, kind.INT_MAX),
        "maximum bytes of a batch",
        "2097152",
        "kafka.batch.size",
    ),
    _write(
        "linger.ms",
        kind.whole(0),
        "wait for more rows of a batch (ms); columnar batches are sent at once",
        "0",
        "kafka.linger.ms",
    ),
    _write(
        "max.request.size",
        kind.whole(1024, kind.INT_MAX),
        "maximum bytes of a row; a larger row fails its task",
        "8388608",
        "kafka.max.request.size",
    ),
    _write(
        "buffer.memory",
        kind.at_least(65536),
        "maximum unacknowledged bytes, at least 65536; above it, writing waits",
        "33554432",
        "kafka.buffer.memory",
    ),
    _write(
        "delivery.timeout.ms",
        kind.whole(1, kind.INT_MAX),
        "a task fails if its rows are not acknowledged within this time (ms)",
        "120000",
        "kafka.delivery.timeout.ms",
    ),
    _write(
        "max.block.ms",
        kind.whole(1),
        "longest wait for free buffer.memory (ms)",
        "120000",
        "kafka.max.block.ms",
    ),
    _write(
        "retry.backoff.ms",
        kind.whole(0),
        "pause before a retry of a request (ms)",
        "50",
        "kafka.retry.backoff.ms",
    ),
    _write(
        "enable.idempotence",
        kind.flag,
        "a retry never duplicates rows; needs acks=all",
        "true",
        "kafka.enable.idempotence",
    ),
    _write(
        "deliveryGuarantee",
        kind.one_of("at_least_once", "exactly_once"),
        "exactly_once: each micro-batch, or df.write, is one transaction, and a replay writes "
        "nothing twice",
        "at_least_once",
    ),
    _write(
        "transactionalId",
        kind.text,
        "exactly_once: prefix of a stream's sink id; with df.write the sink id",
    ),
    _write(
        "transactionVersion",
        kind.whole(0),
        "df.write with transactionalId: number of the write; each write needs a higher one, and a "
        "repeat of the last one writes nothing",
    ),
    _write(
        "transaction.timeout.ms",
        kind.whole(1000, kind.INT_MAX),
        "exactly_once: the coordinator aborts a batch without a keep-alive for this time (ms)",
        "300000",
        "kafka.transaction.timeout.ms",
    ),
    _write(
        "onReplayMismatch",
        kind.one_of("fail", "skip"),
        "exactly_once: fail or skip a replayed batch with another number of rows, or one older "
        "than the last committed batch",
        "fail",
    ),
)
"""All options. The documentation and the suggestions for unknown names come from this table."""

_IGNORED_LINES = (
    "allow.auto.create.topics auto.commit.interval.ms check.crcs client.dns.lookup",
    "client.rack connections.max.idle.ms default.api.timeout.ms enable.metrics.push",
    "exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes",
    "group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms",
    "key.serializer.encoding max.in.flight.requests.per.connection max.poll.interval.ms",
    "max.poll.records metadata.max.idle.ms metadata.recovery.strategy",
    "metadata.recovery.rebootstrap.trigger.ms metric.reporters metrics.num.samples",
    "metrics.recording.level metrics.sample.window.ms partition.assignment.strategy",
    "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms",
    "receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms retries",
    "retry.backoff.max.ms send.buffer.bytes session.timeout.ms",
    "socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms",
    "compression.gzip.level compression.lz4.level",
    "compression.zstd.level",
    *security_options.IGNORED,
)
KAFKA_IGNORED = frozenset(line for words in _IGNORED_LINES for line in words.split())
"""Names of Kafka's tuning options without an effect in logbus. A query may give them with the
prefix ``kafka.``; logbus logs one warning and ignores them."""

_PLACEMENT = (
    "rows with a key go to the partition that Kafka's default partitioner chooses; to choose "
    "another, write a column 'partition' (int)"
)
# The keys are option names without "kafka.", the values are advice for the user.
KAFKA_REFUSED: Mapping[str, str] = {
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys are binary; cast the column",
    "value.deserializer": "values are binary; cast the column",
    "key.serializer": "keys are string or binary columns",
    "value.serializer": "values are string or binary columns",
    "enable.auto.commit": "the checkpoint decides where a query resumes, and the query commits its "
    "progress to the group without this option; leave it out",
    "interceptor.classes": "logbus has no interceptors; leave it out",
    "partitioner.class": _PLACEMENT,
    "partitioner.ignore.keys": _PLACEMENT,
    "transactional.id": "use deliveryGuarantee=exactly_once, and transactionalId",
}
_REFUSED: Mapping[str, str] = {
    "txnappid": "use deliveryGuarantee=exactly_once with transactionalId",
    "txnversion": "use deliveryGuarantee=exactly_once with transactionVersion",
}
_CATALOG_TABLE = (
    "USING logbus cannot make a table: Spark keeps a table's OPTIONS in its catalog and gives a "
    "source in Python none of them when the table is read. Use CREATE TEMPORARY VIEW name USING "
    "logbus OPTIONS (...)"
)
"""The error for the option ``provider``, which Spark adds only for CREATE TABLE."""
_SPARK_LINES = (
    "path paths checkpointlocation queryname outputmode asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms _asyncprogresstrackingoverridesinksupportcheck",
)
SPARK_KEYS = frozenset(line for words in _SPARK_LINES for line in words.split())
"""Names, in lower case, of Spark's own options. ``parse`` ignores them without a warning."""

SECRET_OPTIONS = SECRET_KEYS | {JAAS}
"""Options whose values are secrets. Error messages leave out these values."""

_SPELLINGS: Mapping[str, tuple[str, Option]] = {
    spelling.lower(): (spelling, option)
    for option in OPTIONS
    for spelling in (option.name, *option.spellings)
}
_warned: set[str] = set()

Parsed = Mapping[str, Any]
"""The checked values of the options that a query gives, by ``Option.name``."""


def parse(given: Mapping[str, str]) -> dict[str, Any]:
    """Check every option of a query, and return the values by ``Option.name``.

    Logs one warning for each ignored option of Kafka. Raises InvalidConfigError.
    """
    if any(key.lower() == "provider" for key in given):
        raise InvalidConfigError(_CATALOG_TABLE)
    values: dict[str, Any] = {}
    origin: dict[str, tuple[str, str]] = {}
    ignored: list[str] = []
    for key, text in given.items():
        lower = key.lower()
        if lower in SPARK_KEYS:
            continue
        if lower not in _SPELLINGS:
            if lower.startswith("kafka.") and is_kafkas_handler(lower[len("kafka.") :], text):
                ignored.append(lower)
            else:
                _refuse_or_ignore(key, lower, ignored)
            continue
        spelling, option = _SPELLINGS[lower]
        value = option.parse(spelling, str(text))
        before = origin.get(option.name)
        if before is not None and values[option.name] != value:
            first, second = (f"{before[0]}={before[1]!r}", f"{spelling}={text!r}")
            if option.name in SECRET_OPTIONS:
                first, second = before[0], spelling
            raise InvalidConfigError(
                f"{first} and {second} are two spellings of one option with different values; "
                "give one of them"
            )
        values[option.name] = value
        origin[option.name] = (spelling, str(text))
    _check_choice_of_topics(values)
    _check_limits(values)
    query_security(values)
    fresh = sorted(set(ignored) - _warned)
    if fresh:
        _warned.update(fresh)
        log.warning(
            "logbus ignores these options of Kafka's client, which have no effect here: %s",
            ", ".join(fresh),
        )
    for name, why in (
        ("compression.type", "is not written by logbus"),
        ("buffer.memory", "is too small"),
    ):
        if name in values:
            _warn_of_replacement(*origin[name], why, str(values[name]))
    return values


def _warn_of_misplaced(values: Parsed, *, reads: bool) -> None:
    """Log one warning that names the options without an effect: options of the sink that were given
    to a source (``reads`` is true), or options of the source that were given to a sink. They are no
    error, because a program may give source and sink the same options."""
    names = [
        option.name
        for option in OPTIONS
        if option.name in values and not (option.reads if reads else option.writes)
    ]
    here, there = ("source", "sink") if reads else ("sink", "source")
    said = f"these options have no effect in a {here}: {', '.join(names)}; give them to the {there}"
    if names and said not in _warned:
        _warned.add(said)
        log.warning("%s", said)


def _warn_of_replacement(name: str, text: str, why: str, replacement: str) -> None:
    said = f"{name}={text.strip()}"
    if text.strip().lower() != replacement and said not in _warned:
        _warned.add(said)
        log.warning("%s %s; logbus uses %s instead", said, why, replacement)


def _refuse_or_ignore(key: str, lower: str, ignored: list[str]) -> None:
    reason = _REFUSED.get(lower)
    if lower.startswith("kafka."):
        bare = lower[len("kafka.") :]
        reason = KAFKA_REFUSED.get(bare) or security_options.refusal(bare)
        if reason is None and bare in KAFKA_IGNORED:
            ignored.append(lower)
            return
    if reason is not None:
        raise InvalidConfigError(f"option {key!r} is not supported: {reason}")
    known = [*_SPELLINGS, *(f"kafka.{name}" for name in KAFKA_IGNORED)]
    hint = nearest(lower, known)
    for spelling, _ in _SPELLINGS.values():
        hint = hint.replace(f"'{spelling.lower()}'", f"'{spelling}'")
    raise InvalidConfigError(f"unknown option {key!r}{hint}")


def _check_choice_of_topics(values: Parsed) -> None:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(chosen) > 1:
        raise InvalidConfigError(
            "Only one of the options 'subscribe', 'subscribePattern' and 'assign' can be given; "
            f"this query has {' and '.join(chosen)}: leave out all but one"
        )


def _check_limits(values: Parsed) -> None:
    least, most = values.get("minOffsetsPerTrigger"), values.get("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidConfigError(
            f"the value of minOffsetsPerTrigger({least}) is higher than the "
            f"maxOffsetsPerTrigger({most}); lower one or raise the other"
        )
    few, many = values.get("minPartitions"), values.get("maxPartitions")
    if few is not None and many is not None and few > many:
        raise InvalidConfigError(
            f"minPartitions({few}) is higher than maxPartitions({many}); lower minPartitions or "
            "raise maxPartitions"
        )
    if values.get("enable.idempotence") and values.get("acks", "all") != "all":
        raise InvalidConfigError(
            f"enable.idempotence=true needs acks=all, not acks={values['acks']}; change one of "
            "these options"
        )


def require_topics(values: Parsed) -> Topics:
    """Return the topics to read. Raises InvalidConfigError if none are named."""
    if "subscribe" in values:
        return Topics(names=values["subscribe"])
    if "subscribePattern" in values:
        return Topics(pattern=values["subscribePattern"])
    if "assign" in values:
        return Topics(partitions=values["assign"])
    raise InvalidConfigError(
        "One of the following options must be specified: subscribe, subscribePattern, assign"
    )


def read_options(values: Parsed, bootstrap_servers: str, *, streaming: bool) -> ReadOptions:
    """Return the settings of a stream (``streaming``) or of a batch query.

    Raises InvalidConfigError for an option that only the other kind of query has.
    """
    _warn_of_misplaced(values, reads=True)
    starting_option, starting = _start_of(values, streaming)
    ending_option, ending = _end_of(values, streaming)
    if not streaming:
        for name in (
            "maxOffsetsPerTrigger",
            "minOffsetsPerTrigger",
            "maxTriggerDelay",
            "maxBytesPerTrigger",
        ):
            if name in values:
                log.warning("%s has no effect in a batch query", name)
    get = _with_defaults(values)
    identity = tuple(
        (option.name, repr(values[option.name]))
        for option in OPTIONS
        if option.source and option.name in values
    )
    return ReadOptions(
        bootstrap_servers=bootstrap_servers,
        topics=require_topics(values),
        starting=starting,
        starting_option=starting_option,
        ending=ending,
        ending_option=ending_option,
        late_timestamp=get("startingOffsetsByTimestampStrategy"),
        fallback=get("startingOffsetsFallback"),
        new_partitions=get("newPartitionOffsets"),
        fail_on_data_loss=get("failOnDataLoss"),
        group_id=values.get("group.id", ""),
        group_prefix=get("groupIdPrefix"),
        rows_max=values.get("maxOffsetsPerTrigger", 0),
        rows_min=values.get("minOffsetsPerTrigger", 0),
        trigger_delay_max_ms=get("maxTriggerDelay"),
        bytes_max=values.get("maxBytesPerTrigger", 0),
        partitions_min=values.get("minPartitions", 0),
        partitions_max=values.get("maxPartitions", 0),
        partition_rows_max=values.get("maxRecordsPerPartition", 0),
        poll_timeout_ms=get("pollTimeoutMs"),
        retries=get("fetchOffset.numRetries"),
        retry_interval_ms=get("fetchOffset.retryIntervalMs"),
        metadata_age_ms=get("metadata.max.age.ms"),
        isolation=get("isolation.level"),
        fetch_bytes=get("max.partition.fetch.bytes"),
        local_reads=get("localReads"),
        request_timeout_ms=get("request.timeout.ms"),
        client_id=get("client.id"),
        security=query_security(values),
        identity=identity,
    )


def write_options(
    values: Parsed, bootstrap_servers: str, *, streaming: bool = False
) -> WriteOptions:
    """Return a sink's settings. Raises InvalidConfigError for options that exclude each other."""
    get = _with_defaults(values)
    acks = get("acks")
    _check_exactly_once(values, streaming)
    _warn_of_misplaced(values, reads=False)
    return WriteOptions(
        bootstrap_servers=bootstrap_servers,
        topic=values.get("topic", ""),
        use_timestamp=get("useTimestampColumn"),
        acks=acks,
        compression=get("compression.type"),
        batch_bytes=get("batch.size"),
        request_bytes_max=get("max.request.size"),
        linger_ms=get("linger.ms"),
        buffer_bytes=get("buffer.memory"),
        delivery_timeout_ms=get("delivery.timeout.ms"),
        max_block_ms=get("max.block.ms"),
        retry_backoff_ms=get("retry.backoff.ms"),
        idempotence=get("enable.idempotence") and acks == "all",
        request_timeout_ms=get("request.timeout.ms"),
        client_id=get("client.id"),
        security=query_security(values),
        is_exactly_once=get("deliveryGuarantee") == "exactly_once",
        transactional_id=values.get("transactionalId", ""),
        transaction_version=values.get("transactionVersion", -1),
        transaction_timeout_ms=get("transaction.timeout.ms"),
        skips_replay_mismatch=get("onReplayMismatch") == "skip",
    )


def _check_exactly_once(values: Parsed, streaming: bool) -> None:
    if values.get("deliveryGuarantee") != "exactly_once":
        for name in ("transactionalId", "transactionVersion", "onReplayMismatch"):
            if name in values:
                raise InvalidConfigError(f"{name} needs deliveryGuarantee=exactly_once; give both")
        return
    if values.get("acks", "all") != "all" or values.get("enable.idempotence") is False:
        raise InvalidConfigError(
            "deliveryGuarantee=exactly_once needs acks=all and enable.idempotence=true; leave out "
            "these two options"
        )
    if streaming and "transactionVersion" in values:
        raise InvalidConfigError(
            "transactionVersion is for df.write only: a stream uses Spark's batch id instead. "
            "Leave it out"
        )
    if not streaming and ("transactionalId" in values) != ("transactionVersion" in values):
        raise InvalidConfigError(
            "df.write takes transactionalId and transactionVersion together: a repeat with the "
            "same pair writes nothing. Give both or none"
        )


def _with_defaults(values: Parsed) -> Callable[[str], Any]:
    rows = {option.name: option for option in OPTIONS}

    def get(name: str) -> Any:
        row = rows[name]
        return values[name] if name in values else row.parse(name, row.default)

    return get


def _start_of(values: Parsed, streaming: bool) -> tuple[str, OffsetSpec]:
    if "startingTimestamp" in values:
        return "startingTimestamp", offsets.GlobalTime(values["startingTimestamp"])
    if "startingOffsetsByTimestamp" in values:
        return "startingOffsetsByTimestamp", values["startingOffsetsByTimestamp"]
    spec: OffsetSpec = values.get(
        "startingOffsets",
        offsets.LATEST_EVERYWHERE if streaming else offsets.EARLIEST_EVERYWHERE,
    )
    if not streaming and (
        spec == offsets.LATEST_EVERYWHERE
        or (
            isinstance(spec, offsets.PerPartition)
            and any(o == offsets.LATEST for row in spec.topics.values() for o in row.values())
        )
    ):
        raise InvalidConfigError(
            "startingOffsets: starting offset can't be latest (-1) for batch queries; give "
            "earliest (-2) or offsets"
        )
    return "startingOffsets", spec


def _end_of(values: Parsed, streaming: bool) -> tuple[str, OffsetSpec]:
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in values:
                raise InvalidConfigError(
                    f"{name}: ending offset not valid in streaming queries; use a batch query or "
                    "trigger(availableNow=True)"
                )
    if "endingTimestamp" in values:
        return "endingTimestamp", offsets.GlobalTime(values["endingTimestamp"])
    if "endingOffsetsByTimestamp" in values:
        return "endingOffsetsByTimestamp", values["endingOffsetsByTimestamp"]
    return "endingOffsets", values.get("endingOffsets", offsets.LATEST_EVERYWHERE)
