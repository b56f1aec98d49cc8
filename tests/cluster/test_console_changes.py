"""Change a cluster from the console: plans of changes, typed confirmations, CSRF tokens, refused
changes.

Before each change, the console shows a plan with the ``logbus`` command that makes the same change.
"""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from support.console import Answer, RunningConsole, change, token
from support.patience import until

from broker_lite.bus import Bus, connect
from broker_lite.cli.acl import delete
from broker_lite.cli.main import run
from broker_lite.errors import BrokerIdNotRegisteredError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[RunningConsole]:
    running = RunningConsole(cluster.bootstrap_servers)
    until(lambda: running.get("/healthz").status == 200, what="the first reading")
    yield running
    running.close()


@pytest.fixture
def shown_topic(console: RunningConsole, topic: str) -> str:
    until(lambda: console.get(f"/api/v1/topics/{topic}/settings").status == 200, what="the topic")
    return topic


def command_of(plan: Answer) -> list[str]:
    """Return the arguments of the ``logbus`` command in ``plan``, a page shown before a change."""
    (found,) = re.findall(r"<code>logbus (.*?)</code>", plan.text)
    return shlex.split(html.unescape(found))


def test_console_creates_writes_alters_and_deletes_a_topic(
    console: RunningConsole, bus: Bus, topic: str
) -> None:
    name = f"{topic}-made"
    made = change(
        console,
        "/topics/new",
        name=name,
        partitions="2",
        replicas="3",
        settings="retention.ms=86400000",
    )
    assert (made.status, made.headers["location"]) == (
        303,
        f"/topics/{name}/messages?done=topics-new",
    )
    assert len(bus.admin.cluster([name]).topics[name].partitions) == 2
    done = console.get(made.headers["location"])
    assert "The topic is created." in done.text

    sent = change(
        console,
        f"/topics/{name}/produce",
        key="k",
        value="line 1\r\nline 2",
        headers="a=1",
        partition="1",
    )
    assert sent.headers["location"].startswith(f"/topics/{name}/messages?partition=1&from=offset")
    (row,) = console.json(f"/topics/{name}/messages")["records"]
    assert (row["key"]["text"], row["value"]["text"]) == ("k", "line 1\nline 2")
    assert row["headers"][0]["name"] == "a"

    key = ("topic", name)
    shorter = {"setting": "retention.ms", "value": "1000000"}
    plan = change(console, f"/topics/{name}/alter", **shorter)
    assert plan.status == 200 and "from 86400000 to 1000000" in plan.text
    assert bus.admin.describe_configs([name])[key]["retention.ms"].value == "86400000"
    change(console, f"/topics/{name}/alter", **shorter, typed=name)
    assert bus.admin.describe_configs([name])[key]["retention.ms"].value == "1000000"
    change(console, f"/topics/{name}/alter", setting="retention.ms", value="")
    assert bus.admin.describe_configs([name])[key]["retention.ms"].source != "topic"

    path = f"/topics/{name}/delete"
    assert name in bus.topics()
    wrong = change(console, path, typed="something else")
    assert wrong.status == 400 and "Nothing was changed" in wrong.text and name in bus.topics()
    assert change(console, path, typed=name).headers["location"].startswith("/topics?done=")
    assert name not in bus.topics()


def test_console_sends_every_header_of_a_repeated_name(
    console: RunningConsole, shown_topic: str
) -> None:
    change(console, f"/topics/{shown_topic}/produce", value="v", headers="a=1\r\na=2")
    (row,) = console.json(f"/topics/{shown_topic}/messages")["records"]
    assert [(each["name"], each["text"]) for each in row["headers"]] == [("a", "1"), ("a", "2")]


def test_console_pages_of_a_topic_named_new_can_be_opened(
    console: RunningConsole, bus: Bus
) -> None:
    """Regression: /topics/new is the form for a new topic, so the links of a topic named "new"
    led to this form."""
    bus.create_topic("new", partitions=1)
    try:
        until(lambda: 'href="/topics/new/messages"' in console.get("/topics?q=new").text)
        form = console.get("/topics/new/produce").text
        assert form.count('href="/topics/new/messages"') == 2  # the path above, and Cancel
    finally:
        bus.delete_topic("new")


def test_console_quotes_a_group_name_with_special_characters_in_links_and_commands(
    console: RunningConsole, bus: Bus, topic: str
) -> None:
    """Regression: Cancel led to a missing page for a name with a slash, and the command to copy was
    not quoted."""
    name = "a/b; echo <i>"
    bus.admin.commit_offsets(name, {TopicPartition(topic, 0): 0})
    address = f"/groups/{quote(name, safe='')}"
    until(lambda: console.get(address).status == 200, what="the group")
    shown = html.unescape(console.get(address).text)
    assert f"logbus groups reset-offsets '{name}' --to earliest" in shown
    assert console.get(f"{address}/move").text.count(f'href="{address}"') == 2
    bus.admin.delete_group(name)


def test_console_deletes_old_records_after_a_typed_confirmation(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    with bus.producer() as producer:
        for number in range(10):
            producer.send(shown_topic, b"v", partition=number % 2)
    path = f"/topics/{shown_topic}/trim"
    plan = change(console, path, before="3", partition="")
    assert plan.status == 200 and "Deletes 6 records" in plan.text
    assert change(console, path, before="3", partition="", typed=shown_topic).status == 303
    starts = bus.admin.list_offsets({TopicPartition(shown_topic, n): -2 for n in range(3)})
    assert [row.offset for _, row in sorted(starts.items())] == [3, 3, 0]
    nothing = change(console, path, before="3", partition="")
    assert nothing.status == 400 and "no record" in nothing.text.lower()


def test_console_moves_replicas_to_other_brokers_and_elects_leaders(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    path = f"/topics/{shown_topic}/reassign"
    assert change(console, path, brokers="0,1").status == 200
    assert change(console, path, brokers="0,1", typed=shown_topic).status == 303

    def replicas() -> set[tuple[int, ...]]:
        view = bus.admin.cluster([shown_topic])
        return {part.replicas for part in view.topics[shown_topic].partitions}

    until(lambda: replicas() == {(0, 1), (1, 0)}, what="the move")
    assert change(console, path, brokers="0,0").status == 400
    assert change(console, path, brokers="one").status == 400
    assert change(console, f"/topics/{shown_topic}/elect").status == 303
    assert change(console, "/brokers/elect").status == 303


def test_console_moves_offsets_of_a_group_and_deletes_the_group(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    with bus.producer() as producer:
        for _ in range(5):
            producer.send(shown_topic, b"v", partition=0)
    group, tp = f"team/{shown_topic} 50%2F?#", TopicPartition(shown_topic, 0)
    page = f"/groups/{quote(group, safe='')}"
    bus.admin.commit_offsets(group, {tp: 5})
    until(lambda: console.get(page).status == 200, what="the group")
    assert console.json(page)["group"]["name"] == group
    assert f'href="{page}"' in console.get(f"/groups?q={shown_topic}").text
    assert f'href="/api/v1{page}"' in console.get(page).text
    path = f"{page}/move"
    assert "from 5 to 2" in change(console, path, to="2", topic="").text
    assert bus.admin.committed(group)[tp].offset == 5
    assert change(console, path, to="2", topic="", typed=group).status == 303
    assert bus.admin.committed(group)[tp].offset == 2
    assert change(console, path, to="someday", topic="").status == 400
    with bus.consumer(shown_topic, group=group, start="earliest") as consumer:
        until(lambda: consumer.poll(0.1) or consumer.assignment(), what="the member")
        refused = console.get(f"{page}/delete")
        assert refused.status == 400 and "live members" in refused.text
    assert change(console, f"{page}/delete", typed=group).status == 303
    assert not bus.admin.committed(group)


def test_command_that_the_console_shows_before_a_change_makes_the_same_change(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    """Regression: the command that deletes old records lacked --before.

    Other commands lacked --yes, -t or the cluster.
    """
    with bus.producer() as producer:
        for number in range(10):
            producer.send(shown_topic, b"v", partition=number % 2)
    group, tp = f"{shown_topic} it's", TopicPartition(shown_topic, 0)
    bus.admin.commit_offsets(group, {tp: 5})
    page = f"/groups/{quote(group, safe='')}"
    until(lambda: console.get(page).status == 200, what="the group")

    topic = f"/topics/{shown_topic}"
    for path, form in (
        (f"{topic}/trim", {"before": "-2", "partition": "1"}),
        (f"{topic}/alter", {"setting": "retention.ms", "value": "1000000"}),
        (f"{topic}/elect", {}),
        (f"{topic}/reassign", {"brokers": "0,1"}),
        (f"{page}/move", {"topic": shown_topic, "to": "earliest"}),
        ("/brokers/elect", {}),
    ):
        words = command_of(change(console, path, **form) if form else console.get(path))
        assert words[-2:] == ["-b", bus.bootstrap_servers]
        assert run(words) == 0, words

    starts = bus.admin.list_offsets({TopicPartition(shown_topic, n): -2 for n in range(2)})
    assert [row.offset for _, row in sorted(starts.items())] == [0, 3]
    settings = bus.admin.describe_configs([shown_topic])[("topic", shown_topic)]
    assert settings["retention.ms"].value == "1000000"
    assert bus.admin.committed(group)[tp].offset == 0

    assert run(command_of(console.get(f"{page}/delete"))) == 0
    assert not bus.admin.committed(group)
    assert run(command_of(console.get(f"{topic}/delete"))) == 0
    assert shown_topic not in bus.topics()


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"resource": "topic", "name": "t", "pattern": "literal", "permission": "allow"},
         "--topic t"),
        ({"resource": "transactional_id", "name": "a b", "pattern": "prefixed",
          "permission": "deny", "host": "10.0.0.1"},
         "--transactional-id 'a b' --prefix --host 10.0.0.1 --deny"),
        ({"resource": "cluster", "pattern": "literal", "permission": "allow"}, "--cluster"),
    ],
)  # fmt: skip
def test_acl_delete_command_shown_by_the_console_deletes_only_that_acl(
    console: RunningConsole, bus: Bus, form: dict[str, str], words: str
) -> None:
    plan = change(console, "/acls/remove", principal="alice", operation="describe", **form)
    given = ["acl", "delete", "User:alice", "describe", *shlex.split(words), "--yes"]
    assert command_of(plan) == [*given, "-b", bus.bootstrap_servers]
    delete.make_context("delete", command_of(plan)[2:])


def test_console_refuses_to_retire_a_running_broker(console: RunningConsole) -> None:
    answer = change(console, "/brokers/0/retire", typed="broker 0")
    assert answer.status == 400 and "0" in answer.text
    assert change(console, "/brokers/0/retire", typed="broker 1").status == 400


def test_console_retires_a_stopped_broker_that_holds_no_replica(tmp_path: Path) -> None:
    with LocalCluster(2, directory=tmp_path) as cluster:
        cluster.brokers[1].stop()
        running = RunningConsole(cluster.brokers[0].endpoint)
        try:
            until(lambda: running.get("/healthz").status == 200, what="the first reading")
            assert change(running, "/brokers/1/retire", typed="broker 0").status == 400
            done = change(running, "/brokers/1/retire", typed="broker 1")
            assert (done.status, done.headers["location"].partition("?")[0]) == (303, "/brokers")
        finally:
            running.close()
        with (
            connect(cluster.brokers[0].endpoint) as bus,
            pytest.raises(BrokerIdNotRegisteredError, match="broker 1"),
        ):
            bus.admin.retire_broker(1)


def test_forms_with_a_wrong_token_origin_or_cookie_change_nothing(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    path = f"/topics/{shown_topic}/delete"
    good = {"token": token(console, path), "typed": shown_topic}
    cookie = console.cookie
    forged = [
        console.post(path, {"typed": shown_topic}),
        console.post(path, {**good, "token": "0" * 64}),
        console.post(path, good, Origin="http://evil.example"),
        console.post(path, good, Cookie=f"{console.cookie_name}=other"),
        console.send("POST", path, {"Cookie": cookie}, b"typed=x"),
    ]
    assert [answer.status for answer in forged] == [403] * 5
    assert shown_topic in bus.topics()
    assert console.get(f"{path}?typed={shown_topic}&token={good['token']}").status == 200
    assert shown_topic in bus.topics()


def test_pages_show_the_names_of_settings_and_fields_in_error_messages_unchanged(
    console: RunningConsole, shown_topic: str
) -> None:
    """Regression: the pages showed "Retention.ms" and "From"."""
    refused = change(console, f"/topics/{shown_topic}/alter", setting="retention.ms", value="soon")
    assert refused.status == 400 and 'role="alert">retention.ms' in refused.text
    failed = console.get(f"/topics/{shown_topic}/messages?from=x")
    assert failed.status == 400 and "<p>from=" in failed.text


def test_a_read_only_console_changes_nothing(cluster: LocalCluster, bus: Bus, topic: str) -> None:
    closed = RunningConsole(cluster.bootstrap_servers, "--read-only")
    try:
        until(lambda: closed.get(f"/api/v1/topics/{topic}/settings").status == 200, what="it")
        assert "Read-only" in closed.get("/topics").text
        assert "/topics/new" not in closed.get("/topics").text
        for path in ("/topics/new", f"/topics/{topic}/delete", "/brokers/elect"):
            assert closed.get(path).status == 403
            assert closed.post(path, {"typed": topic, "name": "x"}).status == 403
        assert topic in bus.topics() and "x" not in bus.topics()
    finally:
        closed.close()
