"""The texts of a page's "Copy as command": shell commands and programs that return the page's data.
No I/O."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping

from broker_lite.config.time_text import parse_time_ms
from broker_lite.console.messages.matching import RecordFilters
from broker_lite.console.messages.search import HITS_MAX

Snippets = list[tuple[str, str]]
"""The texts of a page's "Copy as command", each after a label such as "Python"."""
Fields = Mapping[str, str]
"""The query fields of a page's address."""
Snippet = Callable[[Mapping[str, str], str, Fields], Snippets]
"""A function that returns the texts of a page's "Copy as command". It receives the names in the
page's path, the brokers' addresses and the query fields."""


def shell(*words: str) -> str:
    """Return a command of logbus as a user types it."""
    return "logbus " + " ".join(map(shlex.quote, words))


def _topic(path: Mapping[str, str], servers: str, query: Fields) -> Snippets:
    name = path["topic"]
    query = {key: text.strip() for key, text in query.items()}
    return [
        ("Command", _consume(name, servers, query)),
        ("Python", _python(name, servers, query)),
        ("PySpark", _pyspark(name, servers, query)),
    ]


def _consume(name: str, servers: str, query: Fields) -> str:
    """Return the command that prints the records which a page of messages shows."""
    words = ["consume", name, "-e"]
    if query.get("partition"):
        words += ["-p", query["partition"]]
    # With a filter, read from the start: the newest matching records may be anywhere in the log.
    is_filtered = any(query.get(field) for field in RecordFilters._fields)
    newest = "" if is_filtered else f"-{HITS_MAX}"
    starts = {"oldest": "", "offset": query.get("at", ""), "time": f"@{query.get('at', '')}"}
    if start := starts.get(query.get("from", ""), newest):
        words += ["-s", start]
    if query.get("key"):
        words += ["--key", query["key"]]
    if query.get("text"):
        words += ["--grep", f"(?i){re.escape(query['text'])}"]
    if query.get("header"):
        words += ["--header", query["header"]]
    return shell(*words, "-b", servers)


def _start_offset(query: Fields) -> int | None:
    """Return the start offset in the page's query fields; None if there is none, or an invalid
    one."""
    at = query.get("at", "")
    return int(at) if query.get("from") == "offset" and at.isascii() and at.isdigit() else None


def _start_ms(query: Fields) -> str:
    """Return a Python expression for the time from which the page shows records, in milliseconds
    since 1970; empty if the page does not start at a time."""
    if query.get("from") != "time":
        return ""
    # Parsed with now = 0, a relative time such as -1h is negative. The generated program adds it to
    # the time at which the program runs.
    at_ms = parse_time_ms(query.get("at", ""), 0)
    if at_ms is None:
        return ""
    return str(at_ms) if at_ms >= 0 else f"int(time.time() * 1000) - {-at_ms}"


def _python(name: str, servers: str, query: Fields) -> str:
    """Return the text of a program that prints the records that pass the page's filters."""
    tests = []
    if query.get("partition"):
        tests.append(f"record.partition == {int(query['partition'])}")
    if (offset := _start_offset(query)) is not None:
        tests.append(f"record.offset >= {offset}")
    if query.get("key"):
        tests.append(f"record.key == {query['key'].encode()!r}")
    if query.get("text"):
        tests.append(f"{query['text'].lower().encode()!r} in (record.value or b'').lower()")
    if query.get("header"):
        header, equals, value = query["header"].partition("=")
        pair = f"({header!r}, {value.encode()!r}) in record.headers"
        tests.append(pair if equals else f"{header!r} in dict(record.headers)")
    show = "print(record.offset, record.value)"
    body = f"if {' and '.join(tests)}:\n                {show}" if tests else show
    start = _start_ms(query)
    return (
        f"{_import_time(start)}from pyspark_logbus import connect\n\n"
        f"with connect({servers!r}) as bus:\n"
        f"    with bus.consumer({name!r}, start='earliest') as consumer:\n"
        + (f"        consumer.seek_to_time({start})\n" if start else "")
        + f"        for record in consumer:\n            {body}"
    )


def _import_time(start: str) -> str:
    return "import time\n\n" if "time." in start else ""


def _pyspark(name: str, servers: str, query: Fields) -> str:
    """Return the text of a program that makes a streaming DataFrame of the records that pass the
    page's filters."""
    topic = f".option('subscribe', {name!r})"
    if query.get("partition"):
        assigned = json.dumps({name: [int(query["partition"])]})
        topic = f".option('assign', {assigned!r})"
    start = _start_ms(query)
    begin = [".option('startingOffsets', 'earliest')"]
    if start:
        begin = [
            f".option('startingTimestamp', {start})",
            ".option('startingOffsetsByTimestampStrategy', 'latest')",
        ]
    lines = [
        "spark.readStream.format('logbus')",
        f".option('bootstrap.servers', {servers!r})",
        topic,
        *begin,
        *([".option('includeHeaders', 'true')"] if query.get("header") else []),
        ".load()",
    ]
    if (offset := _start_offset(query)) is not None:
        lines.append(f".where(F.col('offset') >= {offset})")
    if query.get("key"):
        lines.append(f".where(F.col('key').cast('string') == {query['key']!r})")
    if query.get("text"):
        value = "F.lower(F.col('value').cast('string'))"
        lines.append(f".where({value}.contains({query['text'].lower()!r}))")
    if query.get("header"):
        header, equals, value = query["header"].partition("=")
        test = f"h.key == {header!r}"
        if equals:
            test = f"({test}) & (h.value.cast('string') == {value!r})"
        lines.append(f".where(F.exists('headers', lambda h: {test}))")
    imports = "from pyspark.sql import functions as F\n\n" if "F." in "".join(lines) else ""
    return _import_time(start) + imports + "records = (\n    " + "\n    ".join(lines) + "\n)"


def _plain(*words: str) -> Snippet:
    """Return a function that returns a page's text to copy: the logbus command with these words. A
    word such as ``{topic}`` is replaced by the topic (or other name) in the page's path."""

    def snippets(path: Mapping[str, str], servers: str, _: Fields) -> Snippets:
        filled = [path[word[1:-1]] if word.startswith("{") else word for word in words]
        return [("Command", shell(*filled, "-b", servers))]

    return snippets


SNIPPETS: Mapping[str, Snippet] = {
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
"""The function that returns the texts of a page's "Copy as command", by the page's template."""
