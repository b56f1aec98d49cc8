"""The settings of a consumer in a Kafka group, which ``conf/client.conf`` explains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker_lite.client.membership.assignors import ASSIGNORS, COOPERATIVE
from broker_lite.config import MINUTE, SECOND, ConsumerConfig, Key
from broker_lite.errors import InvalidConfigError


def _setting(key: str, default: Any, doc: str, unit: str = "", at_least: int | None = None) -> Any:
    return field(default=default, metadata={"key": Key(key, doc, unit, at_least)})


@dataclass(frozen=True, slots=True)
class MemberConfig(ConsumerConfig):
    """The settings of a consumer in a Kafka group, in addition to those of every consumer."""

    session_timeout_ms: int = _setting(
        "session.timeout.ms",
        45 * SECOND,
        "the coordinator evicts a member that sends no heartbeat for this long",
        "ms",
        1,
    )
    heartbeat_interval_ms: int = _setting(
        "heartbeat.interval.ms",
        SECOND,
        "time between heartbeats; their answers tell the member of a rebalance",
        "ms",
        1,
    )
    max_poll_interval_ms: int = _setting(
        "max.poll.interval.ms",
        5 * MINUTE,
        "a member that does not poll for this long leaves the group",
        "ms",
        1,
    )
    rebalance_timeout_ms: int = _setting(
        "rebalance.timeout.ms",
        0,
        "how long a rebalance waits for this member; 0: max.poll.interval.ms",
        "ms",
        0,
    )
    metadata_max_age_ms: int = _setting(
        "metadata.max.age.ms",
        30 * SECOND,
        "time between two searches for new topics and partitions",
        "ms",
        10,
    )
    group_instance_id: str = _setting(
        "group.instance.id",
        "",
        "a name that outlasts restarts, so that a restart causes no rebalance",
    )
    assignors: str = _setting(
        "partition.assignment.strategy",
        "range,cooperative-sticky",
        "assignors in order of preference; the group uses the first that all members support",
    )

    def validate(self) -> None:
        names = self.assignor_names
        unknown = [name for name in names if name not in ASSIGNORS]
        if unknown or not names:
            raise InvalidConfigError(
                f"partition.assignment.strategy={self.assignors!r}: give one or more of "
                f"{', '.join(ASSIGNORS)}"
            )
        if self.heartbeat_interval_ms * 2 > self.session_timeout_ms:
            raise InvalidConfigError(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms} must be at most half of "
                f"session.timeout.ms={self.session_timeout_ms}; a third is usual"
            )

    @property
    def assignor_names(self) -> tuple[str, ...]:
        """The assignors in the order of preference."""
        names = (name.strip() for name in self.assignors.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def is_cooperative(self) -> bool:
        """Whether the member keeps its partitions during a rebalance.

        It does if all its assignors are cooperative: the group may choose any of them (KIP-429)."""
        return all(name in COOPERATIVE for name in self.assignor_names)

    @property
    def instance_id(self) -> str | None:
        return self.group_instance_id or None

    @property
    def gathering_ms(self) -> int:
        """The rebalance timeout: milliseconds for which a rebalance waits for this member to
        join."""
        return self.rebalance_timeout_ms or self.max_poll_interval_ms
