"""The checked settings of one query, which Spark pickles for planners and executors.

The module ``options`` creates the settings on the driver. Executors need only this module, not the
table of all options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from broker_lite.client.client_config import security_of_file
from broker_lite.config.client_security import ClientSecurity
from broker_lite.model import TopicPartition
from pyspark_logbus.connection_security import QuerySecurity, for_tasks
from pyspark_logbus.offsets import OffsetSpec


@dataclass(frozen=True, slots=True)
class Topics:
    """The subscription of a source: topic names, a regular expression of whole names, or assigned
    partitions. Exactly one of the three fields is set."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def reads(self, tp: TopicPartition) -> bool:
        """Return whether the subscription includes this partition, even if it does not exist."""
        if self.pattern:
            return re.fullmatch(self.pattern, tp.topic) is not None
        return tp.topic in self.names or tp in self.partitions

    def named(self) -> list[str]:
        """Return the names of the topics that the options give, sorted; none for a pattern."""
        return sorted({*self.names, *(tp.topic for tp in self.partitions)})

    def among(self, names: Iterable[str]) -> list[str]:
        """Return those of the topics ``names`` that the source reads, sorted."""
        if self.pattern:
            return sorted(name for name in names if re.fullmatch(self.pattern, name))
        return sorted(set(self.named()).intersection(names))

    def describe(self) -> str:
        if self.names:
            return f"subscribe {','.join(self.names)}"
        if self.pattern:
            return f"subscribePattern {self.pattern}"
        return f"assign {','.join(map(str, self.partitions))}"


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """The checked settings that the source and the sink share. Picklable."""

    bootstrap_servers: str
    client_id: str
    request_timeout_ms: int
    security: QuerySecurity

    def given_security(self) -> ClientSecurity | None:
        """Return the TLS and login settings that the query's options give, or None. Raises
        InvalidConfigError for a wrong setting in the file of ``client.config``."""
        given = self.security
        return security_of_file(given) if isinstance(given, Path) else given

    def for_tasks(self) -> Self:
        """Return a copy of the options to pickle for tasks, with the security settings that
        ``connection_security.for_tasks`` returns.

        Call it on the driver. It logs in to the cluster, and raises the login's error.
        """
        security = for_tasks(
            self.bootstrap_servers, self.security, self.client_id, self.request_timeout_ms
        )
        return replace(self, security=security)


@dataclass(frozen=True, slots=True)
class ReadOptions(QueryOptions):
    """The checked settings of a source. Times are in ms and sizes in bytes; 0 means no
    limit.

    ``starting_option`` and ``ending_option`` name the options that gave ``starting`` and
    ``ending``, for error messages. ``identity`` has the options that choose topics and offsets,
    from which the name of a default consumer group is computed.
    """

    topics: Topics
    starting: OffsetSpec
    starting_option: str
    ending: OffsetSpec
    ending_option: str
    late_timestamp: str
    fallback: str
    new_partitions: str
    fail_on_data_loss: bool
    group_id: str
    group_prefix: str
    rows_max: int
    rows_min: int
    trigger_delay_max_ms: int
    bytes_max: int
    partitions_min: int
    partitions_max: int
    partition_rows_max: int
    poll_timeout_ms: int
    retries: int
    retry_interval_ms: int
    metadata_age_ms: int
    isolation: str
    fetch_bytes: int
    local_reads: bool
    identity: tuple[tuple[str, str], ...]

    @property
    def grace_s(self) -> float:
        """Seconds for which the driver retries an offset lookup.

        A starting broker may not list a topic yet, or may report too low a log end. So a topic or
        record counts as lost only if it is missing for this long.
        """
        return self.retries * self.retry_interval_ms / 1000


@dataclass(frozen=True, slots=True)
class WriteOptions(QueryOptions):
    """The checked settings of a sink. Picklable, and hashable because ``partition_writer`` keeps
    one producer for each different WriteOptions. Times are in ms and sizes in bytes."""

    topic: str
    use_timestamp: bool
    acks: str
    compression: str
    batch_bytes: int
    request_bytes_max: int
    linger_ms: int
    buffer_bytes: int
    delivery_timeout_ms: int
    max_block_ms: int
    retry_backoff_ms: int
    idempotence: bool
    is_exactly_once: bool
    transactional_id: str
    transaction_version: int
    """The option transactionVersion, a number by which a repeated ``df.write`` is recognised; -1 if
    the query does not give it."""
    transaction_timeout_ms: int
    skips_replay_mismatch: bool
