"""The data of the pages about topics, and for one topic its partitions, settings and groups."""

from __future__ import annotations

from typing import Any

from broker_lite.config import TopicConfig, keys, text
from broker_lite.console.lists import Column, listing
from broker_lite.console.page_request import Data, PageRequest
from broker_lite.observing.reading import total_lag
from broker_lite.observing.verdict import partitions as health_of

TOPICS = (
    Column("name", "Topic"),
    Column("state", "Health", "state"),
    Column("partitions", "Partitions", "number"),
    Column("replicas", "Replicas", "number"),
    Column("records", "Records", "number"),
    Column("records_per_s", "Records/s", "rate"),
    Column("size_bytes", "Data", "size"),
    Column("lag", "Largest lag", "number"),
)
PARTITIONS = (
    Column("partition", "Partition", "id"),
    Column("state", "Health", "state"),
    Column("leader", "Leader", "id"),
    Column("replicas", "Replicas"),
    Column("isr", "In sync"),
    Column("leader_epoch", "Epoch", "number"),
    Column("start", "Start", "number"),
    Column("end", "End", "number"),
    Column("size_bytes", "Data", "size"),
)
GROUPS = (
    Column("name", "Group"),
    Column("kind", "Kind"),
    Column("state", "State"),
    Column("lag", "Lag here", "number"),
    Column("lag_s", "Behind", "duration"),
)
DEFAULTS = text(TopicConfig())
FIXED = frozenset(key.key for key in keys(TopicConfig).values() if len(key.choices) == 1)
"""Settings of a topic that accept only one value, so that a user cannot change them."""


def topics(ask: PageRequest) -> Data:
    rows = [
        row._asdict()
        | {
            "state": "ok" if not row.unhealthy else f"{row.unhealthy} of {row.partitions}",
            "trend": ask.sampler.topics.values(row.name)[-120:],
        }
        for row in ask.reading.topics.values()
    ]
    return {"topics": listing(rows, TOPICS, ask.query, sort="name")}


def facts(ask: PageRequest) -> Data:
    """Return the data about a topic that all its pages show in their heading."""
    topic = ask.topic()
    row = ask.reading.topics[topic.name]
    return row._asdict() | {"topic_id": topic.topic_id}


def partitions(ask: PageRequest) -> Data:
    topic = ask.topic()
    reading = ask.reading
    health = {row.tp: row for row in health_of(reading.sample) if row.tp.topic == topic.name}
    sizes: dict[Any, int] = {}
    for disk in reading.sample.log_dirs:
        for tp, size in disk.partitions.items():
            if tp.topic == topic.name:
                sizes[tp] = max(sizes.get(tp, 0), size)
    rows: list[dict[str, Any]] = []
    for part, tp in zip(
        topic.partitions, reading.sample.view.partitions_of(topic.name), strict=True
    ):
        move = reading.sample.moves.get(tp)
        rows.append(
            {
                "name": str(tp.partition),
                "partition": tp.partition,
                "state": health[tp].state,
                "why": health[tp].why,
                "leader": part.leader if part.leader >= 0 else None,
                "preferred": not part.replicas or part.leader == part.replicas[0],
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "leader_epoch": part.leader_epoch,
                "start": reading.starts.get(tp),
                "end": reading.ends.get(tp),
                "size_bytes": sizes.get(tp),
                "adding": [] if move is None else list(move.adding),
                "removing": [] if move is None else list(move.removing),
            }
        )
    named = {broker for row in rows for broker in row["replicas"]}
    return {
        "topic": facts(ask),
        "partitions": listing(rows, PARTITIONS, ask.query, sort="partition"),
        "brokers": sorted({*named, *reading.sample.view.brokers}),
    }


def settings(ask: PageRequest) -> Data:
    topic = ask.topic()
    (entries,) = ask.admin.describe_configs(topics=[topic.name]).values()
    rows = [
        {
            "name": entry.name,
            "value": entry.value,
            "default": DEFAULTS.get(entry.name),
            "is_default": entry.source != "topic",
            "is_fixed": entry.name in FIXED,
            "source": entry.source,
            "documentation": entry.documentation,
        }
        for entry in entries.values()
    ]
    rows.sort(key=lambda row: (row["is_default"], row["is_fixed"], row["name"]))
    return {"topic": facts(ask), "settings": rows}


def groups(ask: PageRequest) -> Data:
    topic = ask.topic()
    rows = []
    for name, group in ask.reading.lags.items():
        parts = [part for tp, part in group.partitions.items() if tp.topic == topic.name]
        if not parts:
            continue
        row = ask.reading.groups[name]
        lag, lag_s = total_lag(parts)
        rows.append(
            {"name": name, "kind": row.kind, "state": row.state, "lag": lag, "lag_s": lag_s}
        )
    return {"topic": facts(ask), "groups": listing(rows, GROUPS, ask.query, sort="lag")}
