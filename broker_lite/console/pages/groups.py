"""The data of the pages about groups and Spark queries: kind, state, members, and lag in records
and seconds with its trend."""

from __future__ import annotations

from broker_lite.client.administration.group_lag import owned_by
from broker_lite.console.lists import Column, listing
from broker_lite.console.page_request import Data, PageRequest

GROUPS = (
    Column("name", "Group"),
    Column("kind", "Kind"),
    Column("state", "State"),
    Column("members", "Members", "number"),
    Column("lag", "Lag", "number"),
    Column("lag_s", "Behind", "duration"),
)
PARTITIONS = (
    Column("name", "Partition"),
    Column("committed", "Committed", "number"),
    Column("end", "End", "number"),
    Column("lag", "Lag", "number"),
    Column("lag_s", "Behind", "duration"),
    Column("owner", "Read by"),
)


def groups(ask: PageRequest) -> Data:
    rows = [
        row._asdict()
        | {"topics": list(row.topics), "trend": (ask.lag_history(row.name) or [])[-120:]}
        for row in ask.reading.groups.values()
    ]
    return {"groups": listing(rows, GROUPS, ask.query, sort="lag")}


def group(ask: PageRequest) -> Data:
    row = ask.group()
    lag = ask.reading.lags[row.name]
    rows = [
        {
            "name": f"{tp.topic}-{tp.partition}",
            "topic": tp.topic,
            "partition": tp.partition,
            "committed": None if part.committed is None else part.committed.offset,
            "end": part.end,
            "lag": part.records,
            "lag_s": part.seconds,
            "owner": part.owner,
        }
        for tp, part in lag.partitions.items()
    ]
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.client_host,
            "partitions": [
                f"{topic}-{partition}"
                for topic, partition in owned_by(member)
                if ask.may_describe(topic)
            ],
        }
        for member in sorted(lag.members)
    ]
    history = ask.lag_history(row.name)
    return {
        "group": row._asdict() | {"topics": list(row.topics)},
        "history": history,
        "history_s": ask.sampler.span_s(len(history or ())),
        "members": members,
        "partitions": listing(rows, PARTITIONS, ask.query, sort="name"),
    }
