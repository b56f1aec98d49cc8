"""Test the console's pages of records: search and its limits, live tail, export."""

from __future__ import annotations

import contextlib
import csv
import http.client
import io
import json
import os
import re
import shlex
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow.parquet as pq
import pytest
from support.console import RunningConsole
from support.patience import until

from broker_lite.bus import Bus
from broker_lite.cli.main import run
from broker_lite.console.commands import SNIPPETS
from broker_lite.console.messages.matching import RecordFilters
from broker_lite.console.messages.tail import LiveTail
from broker_lite.console.page_request import DOWNLOADS
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

pytestmark = pytest.mark.real

HOSTILE = b'"><script>document.title="owned"</script><img src=x onerror=alert(1)>'
BIG = 8 * 1024 * 1024 - 4096
SHOWN = 16 * 1024
"""Bytes of a value that a page with few records shows."""
MEMORY_MAX_MB = 120
"""Maximum resident memory of a console between two searches. Without a release it is 300 MB."""


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[RunningConsole]:
    running = RunningConsole(cluster.bootstrap_servers)
    yield running
    running.close()


@pytest.fixture
def shown_topic(console: RunningConsole, topic: str) -> str:
    """Create a topic of three partitions; wait until the console shows it; return its name."""
    until(lambda: console.get(f"/api/v1/topics/{topic}/settings").status == 200, what="the topic")
    return topic


def longest_run(text: str) -> int:
    """Return the length of the longest run of the letter x."""
    return max(map(len, re.findall("x+", text)))


def fill(bus: Bus, topic: str, count: int, *, first: int = 0, partitions: int = 3) -> None:
    with bus.producer() as producer:
        for number in range(first, first + count):
            producer.send(
                topic,
                json.dumps({"number": number}).encode(),
                key=f"k{number % 7}".encode(),
                headers=[("parity", b"odd" if number % 2 else b"even")],
                partition=number % partitions,
                timestamp_ms=1_700_000_000_000 + number,
            )


def numbers(found: dict[str, object]) -> list[int]:
    return [json.loads(row["value"]["text"])["number"] for row in found["records"]]  # type: ignore


def test_message_pages_list_each_record_once_from_newest_to_oldest(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    fill(bus, shown_topic, 250)
    found = console.json(f"/topics/{shown_topic}/messages")
    assert numbers(found) == list(range(249, 149, -1))
    assert found["covered"]["stop"] == "hits"
    second = console.json(f"/topics/{shown_topic}/messages?left={found['left']}")
    assert numbers(second) == list(range(149, 49, -1))
    third = console.json(f"/topics/{shown_topic}/messages?left={second['left']}")
    assert numbers(third) == list(range(49, -1, -1))
    assert (third["covered"]["stop"], third["left"]) == ("end", "")


def test_newest_records_of_more_partitions_than_a_page_has_records_come_first(
    console: RunningConsole, bus: Bus, topic: str
) -> None:
    topic = f"{topic}-wide"
    bus.create_topic(topic, partitions=130)
    until(lambda: console.get(f"/api/v1/topics/{topic}/settings").status == 200, what="the topic")
    fill(bus, topic, 310, partitions=130)
    found = console.json(f"/topics/{topic}/messages")
    assert numbers(found) == list(range(309, 209, -1))
    assert found["covered"]["records"] == 100
    second = console.json(f"/topics/{topic}/messages?left={found['left']}")
    assert numbers(second) == list(range(209, 109, -1))

    fill(bus, topic, 120, first=310, partitions=1)
    assert numbers(console.json(f"/topics/{topic}/messages")) == list(range(429, 329, -1))


def test_page_of_records_of_too_many_partitions_for_a_link_says_how_to_read_on(
    console: RunningConsole, bus: Bus, topic: str
) -> None:
    """Regression: the page of a topic with 500 partitions ended with the newest 100 records."""
    topic = f"{topic}-widest"
    bus.create_topic(topic, partitions=305, replication_factor=1)
    until(lambda: console.get(f"/api/v1/topics/{topic}/settings").status == 200, what="the topic")
    fill(bus, topic, 610, partitions=305)
    found = console.json(f"/topics/{topic}/messages")
    assert (len(found["records"]), found["left"]) == (100, "")
    assert found["covered"]["unread_partitions"] == 305
    shown = console.get(f"/topics/{topic}/messages").text
    assert "305 partitions have further records. Choose one partition" in shown
    one = console.json(f"/topics/{topic}/messages?partition=7")
    assert numbers(one) == [312, 7]


def test_newest_records_that_are_larger_than_one_fetch_are_listed(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    fill(bus, shown_topic, 20_000, partitions=1)
    with bus.producer() as producer:
        for number in range(100):
            text = json.dumps({"pad": "x" * 40_000, "number": number})
            producer.send(shown_topic, text.encode(), partition=0)
    found = console.json(f"/topics/{shown_topic}/messages")
    assert [row["offset"] for row in found["records"]] == list(range(20_099, 19_999, -1))
    assert min(row["value"]["size_bytes"] for row in found["records"]) > 40_000


@pytest.mark.parametrize(
    "query",
    [
        {"from": "oldest", "partition": "1"},
        {"from": "oldest", "key": "k3"},
        {"from": "oldest", "text": 'NUMBER": 1'},
        {"from": "offset", "at": "15", "partition": "2"},
        {"from": "time", "at": "2023-11-14T22:13:20.040Z"},
        {"from": "newest", "text": "7}"},
        {"from": "newest", "header": "parity=odd", "key": "k3"},
    ],
    ids=str,
)
def test_command_shown_on_a_page_of_records_prints_the_records_of_the_page(
    console: RunningConsole,
    cluster: LocalCluster,
    bus: Bus,
    shown_topic: str,
    query: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    fill(bus, shown_topic, 60)
    page = console.json(f"/topics/{shown_topic}/messages?{urlencode(query)}")
    servers = cluster.bootstrap_servers
    snippets = dict(SNIPPETS["topic_messages"]({"topic": shown_topic}, servers, query))
    capfd.readouterr()
    assert run(shlex.split(snippets["Command"])[1:]) == 0
    printed = [json.loads(line)["number"] for line in capfd.readouterr().out.splitlines()]
    assert sorted(printed) == sorted(numbers(page)) != []


def test_pages_of_a_message_search_contain_each_record_exactly_once(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    fill(bus, shown_topic, 250)
    path, seen = f"/topics/{shown_topic}/messages?from=oldest", []
    left = ""
    for _ in range(3):
        found = console.json(path + (f"&left={left}" if left else ""))
        seen += numbers(found)
        left = found["left"]
    assert (sorted(seen), left) == (list(range(250)), "")


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("key=k3", {n for n in range(60) if n % 7 == 3}),
        ("text=%22NUMBER%22%3A%2012%7D", {12}),
        ("header=parity%3Dodd&partition=0", {n for n in range(60) if n % 2 and n % 3 == 0}),
        ("header=absent", set()),
        ("from=offset&at=18&partition=2", {56, 59}),
        ("from=time&at=1700000000057", {57, 58, 59}),
        ("from=time&at=2030-01-01", set()),
    ],
)
def test_search_returns_the_matching_records_after_its_start_position(
    console: RunningConsole, bus: Bus, shown_topic: str, query: str, wanted: set[int]
) -> None:
    fill(bus, shown_topic, 60)
    found = console.json(f"/topics/{shown_topic}/messages?{query}")
    assert set(numbers(found)) == wanted and found["covered"]["stop"] == "end"


@pytest.mark.parametrize(
    "query",
    [
        "from=x",
        "partition=-1",
        "partition=99",
        "from=offset&at=x",
        "from=time&at=never",
        "left=1.2",
    ],
)
def test_error_for_an_invalid_search_names_the_invalid_field(
    console: RunningConsole, shown_topic: str, query: str
) -> None:
    answer = console.get(f"/api/v1/topics/{shown_topic}/messages?{query}")
    assert answer.status in (400, 404)
    assert query.partition("=")[0] in answer.json["message"] or "at=" in answer.json["message"]


def test_hostile_and_huge_values_are_escaped_and_shortened(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    with bus.producer() as producer:
        producer.send(shown_topic, HOSTILE, key=HOSTILE, headers=[("<b>", HOSTILE)], partition=0)
        producer.send(shown_topic, b"x" * BIG, partition=0)
        producer.send(shown_topic, None, key=b"\xff\x00", partition=0)
    page = console.get(f"/topics/{shown_topic}/messages")
    assert page.status == 200 and len(page.body) < 200_000
    assert "<script>document" not in page.text and "<img src=x" not in page.text
    assert "&lt;script&gt;document.title" in page.text and "8.4 MB" in page.text
    found = console.json(f"/topics/{shown_topic}/messages")["records"]
    assert [row["value"]["form"] for row in found] == ["null", "text", "text"]
    assert found[1]["value"]["is_cut"] and found[1]["value"]["size_bytes"] == BIG
    assert found[1]["value"]["text"] == "x" * SHOWN
    assert longest_run(page.text) == SHOWN


def test_console_exports_every_record_that_matches_the_filters(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    fill(bus, shown_topic, 300)
    path = f"/topics/{shown_topic}/export?from=oldest&key=k1&format="
    wanted = [n for n in range(300) if n % 7 == 1]
    lines = console.get(path + "jsonl")
    assert lines.headers["content-disposition"] == f'attachment; filename="{shown_topic}.jsonl"'
    assert sorted(json.loads(line)["value"]["number"] for line in lines.text.splitlines()) == wanted
    rows = list(csv.DictReader(io.StringIO(console.get(path + "csv").text)))
    assert sorted(json.loads(row["value"])["number"] for row in rows) == wanted
    table = pq.read_table(io.BytesIO(console.get(path + "parquet").body))
    assert sorted(json.loads(v)["number"] for v in table.column("value").to_pylist()) == wanted
    assert console.get(path + "exe").status == 400


def test_exported_csv_keeps_binary_values_line_breaks_and_quotes(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    value = 'a "quoted"\r\nline, grüße\n'.encode()
    with bus.producer() as producer:
        producer.send(shown_topic, value, key=b"\xff", partition=0)
    body = console.get(f"/topics/{shown_topic}/export?format=csv").body
    (row,) = csv.DictReader(io.StringIO(body.decode("utf-8", "surrogateescape"), newline=""))
    assert row["value"].encode() == value
    assert row["key"].encode("utf-8", "surrogateescape") == b"\xff"


class _Tail:
    """The server-sent events of one live tail, which the console sends to a browser."""

    def __init__(self, console: RunningConsole, path: str, after: str = "") -> None:
        self._connection = http.client.HTTPConnection(console.address, timeout=60)
        headers = {"Last-Event-ID": after} if after else {}
        self._connection.request("GET", path, headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, f"{self._answer.status} {self._answer.read()!r}"
        assert self._answer.getheader("content-type", "").startswith("text/event-stream")
        self.last = ""
        begun, self.first = self.event(), self.last
        assert begun == ("begun", "{}")

    def texts(self, count: int) -> list[str]:
        """Return the values of the next ``count`` records."""
        found: list[str] = []
        while len(found) < count:
            text = self.update()["html"]
            found += [f"v{part.partition('<')[0]}" for part in text.split("<summary>v")[1:]]
        return found

    def update(self) -> dict[str, Any]:
        """Return the data of the next event with records."""
        while True:
            line = self._answer.readline().decode().rstrip("\n")
            if line.startswith("id: "):
                self.last = line[4:]
            elif line.startswith("data: "):
                return dict(json.loads(line[6:]))

    def event(self) -> tuple[str, str]:
        """Return the name and the data of the next server-sent event that has a name."""
        while True:
            line = self._answer.readline().decode().rstrip("\n")
            if line.startswith("id: "):
                self.last = line[4:]
            elif line.startswith("event: "):
                return line[7:], self._answer.readline().decode().rstrip("\n")[6:]

    def close(self) -> None:
        # Close the response too, because it keeps the socket open.
        self._answer.close()
        self._connection.close()


def send(bus: Bus, topic: str, *texts: str) -> None:
    with bus.producer() as producer:
        for text in texts:
            producer.send(topic, text.encode(), partition=0)


def test_live_tail_neither_repeats_nor_misses_records_after_it_reconnects(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    send(bus, shown_topic, "v-before")
    path = f"/topics/{shown_topic}/tail"
    tail = _Tail(console, path)
    send(bus, shown_topic, "v1", "v2")
    assert tail.texts(2) == ["v1", "v2"]
    last = tail.last
    tail.close()
    send(bus, shown_topic, "v3", "v4")
    again = _Tail(console, path, after=last)
    send(bus, shown_topic, "v5")
    assert again.texts(3) == ["v3", "v4", "v5"]
    again.close()


def test_live_tail_that_reconnects_before_its_first_record_misses_none(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    send(bus, shown_topic, "v-before")
    path = f"/topics/{shown_topic}/tail"
    tail = _Tail(console, path)
    tail.close()
    send(bus, shown_topic, "v1")
    again = _Tail(console, path, after=tail.first)
    assert again.texts(1) == ["v1"]
    again.close()


def test_live_tail_continues_after_its_broker_was_killed(
    console: RunningConsole, bus: Bus, cluster: LocalCluster, shown_topic: str
) -> None:
    tail = _Tail(console, f"/topics/{shown_topic}/tail?partition=0")
    send(bus, shown_topic, "v1")
    assert tail.texts(1) == ["v1"]
    leader = bus.admin.cluster([shown_topic]).topics[shown_topic].partitions[0].leader
    cluster.brokers[leader].kill()
    try:
        send(bus, shown_topic, "v2")
        assert tail.texts(1) == ["v2"]
    finally:
        tail.close()
        cluster.brokers[leader].start()


def test_live_tail_of_a_deleted_topic_ends_with_a_message(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    tail = _Tail(console, f"/topics/{shown_topic}/tail")
    bus.delete_topic(shown_topic)
    name, text = tail.event()
    assert name == "ended" and shown_topic in text
    tail.close()


def test_live_tail_sends_at_most_500_records_and_10_updates_a_second(bus: Bus, topic: str) -> None:
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += 1 / 32
        return now_s[0]

    tail = LiveTail(bus, [TopicPartition(topic, 0)], RecordFilters(), "0.0", clock=clock)
    shown: list[int] = []
    skipped = sent = 0
    try:
        updates = tail.updates()
        while shown[-1:] != [599]:
            if sent < 600:
                fill(bus, topic, 120, first=sent, partitions=1)
                sent += 120
            began_s = now_s[0]
            update = next(updates)
            assert now_s[0] - began_s >= 0.1
            if update is not None:
                assert len(update.rows) <= 50
                shown += [row["offset"] for row in update.rows]
                skipped += update.skipped
    finally:
        tail.close()
    assert len(shown) + skipped == 600 and skipped > 0
    assert shown == sorted(set(shown)) and shown[-1] == 599


def test_live_tail_shows_the_first_16_kib_of_a_value(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    tail = _Tail(console, f"/topics/{shown_topic}/tail")
    send(bus, shown_topic, "x" * 4 * SHOWN)
    assert longest_run(tail.update()["html"]) == SHOWN
    tail.close()


def test_sixth_live_tail_is_refused_until_another_one_closes(
    console: RunningConsole, shown_topic: str
) -> None:
    path = f"/topics/{quote(shown_topic)}/tail"
    tails = [_Tail(console, path) for _ in range(5)]
    with pytest.raises(AssertionError, match=r"^429 .*SEARCH_LIMIT"):
        _Tail(console, path)
    for tail in tails:
        tail.close()

    def opened() -> _Tail | None:
        try:
            return _Tail(console, path)
        except AssertionError:
            return None

    until(opened, what="room for a tail").close()


def test_fourth_search_is_refused_while_three_run(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    """Each of three searches waits for the first record of an empty partition; the test sends it
    later."""
    path = f"/topics/{shown_topic}/messages"
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(console.get, f"{path}?from=oldest&left=0.0.1") for _ in range(3)]
        refused = until(
            lambda: console.get(f"/api/v1{path}"),
            lambda answer: answer.status == 429,
            what="the refusal",
        )
        assert refused.json["error"] == "SEARCH_LIMIT"
        assert "3 searches or exports run already" in refused.json["message"]
        send(bus, shown_topic, "v1")
        assert [search.result().status for search in waiting] == [200] * 3
    assert console.get(path).status == 200


def test_export_is_refused_while_too_many_downloads_are_open(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    with bus.producer() as producer:
        for _ in range(16):
            producer.send(shown_topic, os.urandom(1024 * 1024), partition=0)
    path = f"/topics/{shown_topic}/export?from=oldest&format=parquet"
    with contextlib.ExitStack() as held:
        for _ in range(DOWNLOADS):
            connection = http.client.HTTPConnection(console.address, timeout=60)
            connection.sock = held.enter_context(socket.socket())
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sock.connect((connection.host, connection.port))
            connection.request("GET", path)
            assert connection.getresponse().status == 200
        refused = console.get(path)
        assert refused.status == 429 and "downloads run already" in refused.text
    until(lambda: console.get(path).status == 200, what="a file after the others ended")


def test_console_with_payloads_disabled_neither_shows_nor_searches_record_values(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    send(bus, topic, "v-secret")
    hiding = RunningConsole(cluster.bootstrap_servers, "--no-payloads")
    try:
        until(
            lambda: hiding.get(f"/api/v1/topics/{topic}/settings").status == 200, what="the topic"
        )
        page = hiding.get(f"/topics/{topic}/messages")
        assert page.status == 200 and "v-secret" not in page.text and ">hidden<" in page.text
        # For a user who may not see values, the console refuses a text filter: the hits would
        # reveal which values contain the text.
        for path in (f"/topics/{topic}/messages?text=v-", f"/topics/{topic}/export?format=csv"):
            assert hiding.get(path).status == 400, path
    finally:
        hiding.close()


def test_export_reports_that_it_does_not_fit_on_the_disk(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    with bus.producer() as producer:
        for _ in range(100):
            producer.send(topic, os.urandom(1000))
    full = RunningConsole(cluster.bootstrap_servers, before=("prlimit", "--fsize=8192"))
    try:
        until(lambda: full.get(f"/api/v1/topics/{topic}/settings").status == 200, what="it")
        for form in ("csv", "jsonl", "parquet"):
            answer = full.get(f"/topics/{topic}/export?format={form}")
            assert answer.status == 507 and "TMPDIR" in answer.text, form
        assert full.get(f"/topics/{topic}/messages").status == 200
    finally:
        full.close()


def test_console_frees_the_memory_of_a_finished_search(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    """Regression: a console kept up to 450 MB after its largest searches."""
    with bus.producer(linger_ms=20) as producer:
        for _ in range(10_000):
            producer.send(topic, os.urandom(2500).hex().encode())
    console = RunningConsole(cluster.bootstrap_servers)
    try:
        pages = f"/topics/{topic}/messages"
        until(lambda: console.get(f"/api/v1{pages}").status == 200, what="the topic")
        # A search ends after ten seconds, so a busy machine needs several.
        covered, left = 0, ""
        while covered < 10_000:
            found = console.json(f"{pages}?text=absent" + (f"&left={left}" if left else ""))
            covered, left = covered + found["covered"]["records"], found["left"]
        assert console.memory_mb < MEMORY_MAX_MB
    finally:
        console.close()
