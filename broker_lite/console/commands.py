"""Commands and programs with the same result as a page, for "Copy as command". Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

Snippets = list[tuple[str, str]]
"""Labels and texts."""


def _shell(*words: str) -> str:
    return "logbus " + " ".join(map(shlex.quote, words))


def _topic(path: Mapping[str, str], servers: str) -> Snippets:
    name = path["topic"]
    return [
        ("Command", _shell("consume", name, "-b", servers)),
        (
            "Python",
            f"from broker_lite import connect\n\nwith connect({servers!r}) as bus:\n"
            f"    with bus.consumer({name!r}, start='earliest') as consumer:\n"
            "        for record in consumer:\n            print(record.offset, record.value)",
        ),
        (
            "PySpark",
            "records = (\n    spark.readStream.format('logbus')\n"
            f"    .option('bootstrap.servers', {servers!r})\n"
            f"    .option('subscribe', {name!r})\n    .load()\n)",
        ),
    ]


def _plain(*words: str) -> Callable[[Mapping[str, str], str], Snippets]:
    """Return the snippet of one command; ``{topic}`` and ``{group}`` stand for the path's names."""

    def snippets(path: Mapping[str, str], servers: str) -> Snippets:
        filled = [path[word[1:-1]] if word.startswith("{") else word for word in words]
        return [("Command", _shell(*filled, "-b", servers))]

    return snippets


SNIPPETS: Mapping[str, Callable[[Mapping[str, str], str], Snippets]] = {
    "overview": _plain("health"),
    "brokers": _plain("status"),
    "broker": _plain("health", "--broker", "{broker}"),
    "topics": _plain("topic", "list"),
    "topic_messages": _topic,
    "topic_partitions": _plain("topic", "describe", "{topic}"),
    "topic_settings": _plain("config", "describe", "--topic", "{topic}"),
    "topic_groups": _plain("lag", "--topic", "{topic}"),
    "groups": _plain("lag"),
    "group": _plain("groups", "describe", "{group}"),
    "transactions": _plain("transactions", "list"),
    "users": _plain("user", "list"),
    "acls": _plain("acl", "list"),
}
"""The snippets by page template."""
