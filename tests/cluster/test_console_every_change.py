"""Send every change that the console offers to a real cluster: forged, cancelled and confirmed.

``ROWS`` has a row for each change in the console's table. A test fails if a change has no row.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import confluent_kafka as ck
import pytest
from support.console import RunningConsole, change, token
from support.patience import until

from broker_lite.bus import Bus, connect
from broker_lite.client.administration import acls, users
from broker_lite.console.changes.table import CHANGES
from broker_lite.errors import InvalidReplicationFactorError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    TRANSACTION_STATE,
    CommittedOffset,
    ScramMechanism,
    TopicPartition,
)
from broker_lite.security.acls import AclFilter
from broker_lite.security.written_acls import acl_of_words

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

WAIT_S = 30.0
PASSWORD = "correct horse"
TOPICS = {"written": 1, "altered": 1, "moved": 1, "trimmed": 1, "deleted": 1, "led": 2, "led-2": 2}
"""The number of replicas of each topic."""
GROUPS = ("rewound", "ended")
ACL = {"principal": "bob", "permission": "allow", "operation": "read", "resource": "topic",
       "name": "written", "pattern": "literal", "host": "*"}  # fmt: skip
State = Callable[[Bus], object]


def first(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


def offset(topic: str, timestamp: int) -> State:
    """Return a function that reads an offset of the topic's partition 0: the log's start, or its
    last stable offset."""
    return lambda bus: bus.admin.list_offsets({first(topic): timestamp})[first(topic)].offset


def leader(topic: str) -> State:
    return lambda bus: bus.admin.cluster([topic]).topics[topic].partitions[0].leader


def replicas(bus: Bus) -> object:
    return bus.admin.cluster(["moved"]).topics["moved"].partitions[0].replicas


def retention(bus: Bus) -> object:
    return bus.admin.describe_configs(["altered"])["topic", "altered"]["retention.ms"].value


def has_topic(topic: str) -> State:
    return lambda bus: topic in bus.topics()


def committed(group: str) -> State:
    return lambda bus: bus.admin.committed(group)


def user_names(bus: Bus) -> object:
    return [user.name for user in bus.admin.run(users.describe_users, None)]


def acl_rows(bus: Bus) -> object:
    return sorted(map(str, bus.admin.run(acls.describe_acls, AclFilter())))


def is_retired(bus: Bus) -> object:
    """Return whether the cluster no longer counts the stopped broker 2: it then takes two replicas
    instead of three as the default."""
    try:
        bus.admin.create_topic("absent", 1, validate_only=True)
    except InvalidReplicationFactorError:
        return False
    return True


class Row(NamedTuple):
    """A form of a change, and the state of the cluster that the change alters.

    ``logged`` is a part of the line that the console logs. ``confirm`` is the word that the user
    must type; empty if the change loses nothing."""

    path: str
    form: Mapping[str, str]
    state: State
    logged: str
    confirm: str = ""


ROWS: Mapping[str, Row] = {
    "/topics/new": Row(
        "/topics/new",
        {"name": "made", "partitions": "1", "replicas": "1"},
        has_topic("made"),
        "'made'",
    ),
    "/topics/{topic}/produce": Row(
        "/topics/written/produce", {"value": "v"}, offset("written", LATEST_TIMESTAMP), "'written'"
    ),
    "/topics/{topic}/alter": Row(
        "/topics/altered/alter",
        {"setting": "retention.ms", "value": "1000000"},
        retention,
        "topic='altered', Changes retention.ms of topic 'altered' from 604800000 to 1000000.",
        "altered",
    ),
    "/topics/{topic}/elect": Row("/topics/led/elect", {}, leader("led"), "topic='led'"),
    "/topics/{topic}/reassign": Row(
        "/topics/moved/reassign", {"brokers": "1"}, replicas, "topic='moved'", "moved"
    ),
    "/topics/{topic}/trim": Row(
        "/topics/trimmed/trim",
        {"partition": "", "before": "latest"},
        offset("trimmed", EARLIEST_TIMESTAMP),
        "topic='trimmed', Deletes 3 records",
        "trimmed",
    ),
    "/topics/{topic}/delete": Row(
        "/topics/deleted/delete", {}, has_topic("deleted"), "topic='deleted'", "deleted"
    ),
    "/groups/{group}/move": Row(
        "/groups/rewound/move",
        {"topic": "", "to": "earliest"},
        committed("rewound"),
        "group='rewound', written-0: from 3 to 0",
        "rewound",
    ),
    "/groups/{group}/delete": Row(
        "/groups/ended/delete", {}, committed("ended"), "group='ended'", "ended"
    ),
    "/brokers/elect": Row("/brokers/elect", {}, leader("led-2"), "every partition"),
    "/brokers/{broker}/retire": Row("/brokers/2/retire", {}, is_retired, "broker='2'", "broker 2"),
    "/transactions/abort": Row(
        "/transactions/abort",
        {"topic": "held", "partition": "0", "start_offset": "0"},
        offset("held", LATEST_TIMESTAMP),
        "held-0",
        "held-0",
    ),
    "/users/add": Row(
        "/users/add", {"name": "carol", "password": PASSWORD}, user_names, "user 'carol'"
    ),
    "/users/{user}/delete": Row("/users/bob/delete", {}, user_names, "user='bob'", "bob"),
    "/acls/add": Row("/acls/add", ACL | {"operation": "write"}, acl_rows, "User:bob"),
    "/acls/remove": Row("/acls/remove", ACL, acl_rows, "User:bob", "User:bob"),
}
"""One row for each change, by the path of the change."""
DANGEROUS = [path for path, row in ROWS.items() if row.confirm]


def login_of(cluster: LocalCluster) -> dict[str, str]:
    """Return the settings with which librdkafka logs in as the administrator."""
    lines = Path(cluster.client_config or "").read_text("utf-8").splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def reassign(bus: Bus, targets: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    bus.admin.reassign(targets)
    until(lambda: not bus.admin.reassignments(), what="the end of the reassignments")


def leave_transaction_open(cluster: LocalCluster, bus: Bus) -> None:
    """Open a transaction in topic held, and delete the only copy of its coordinator's state."""
    bus.create_topic("held", partitions=1, replication_factor=1)
    producer = ck.Producer({**login_of(cluster), "transactional.id": "lost"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("held", b"hidden", partition=0)
    assert producer.flush(WAIT_S) == 0
    view = bus.cluster()
    state = dict.fromkeys(view.partitions_of(TRANSACTION_STATE), (0,))
    reassign(bus, state | {first("held"): (1,)})
    broker = cluster.brokers[0]
    broker.stop()
    for folder in cluster.directory.glob(f"broker-0/data/{view.topic_id(TRANSACTION_STATE)}-*"):
        shutil.rmtree(folder)
    broker.start()


@pytest.fixture(scope="module")
def secured(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return make_module_cluster(3, secure=True)


@pytest.fixture(scope="module")
def bus(secured: LocalCluster) -> Iterator[Bus]:
    """Connect as the administrator, and create the objects of all rows. Broker 2 is stopped."""
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        leave_transaction_open(secured, bus)
        secured.brokers[2].stop()
        for name, factor in TOPICS.items():
            bus.create_topic(name, partitions=1, replication_factor=factor)
        with bus.producer() as producer:
            for name in ("written", "trimmed"):
                for _ in range(3):
                    producer.send(name, b"v", partition=0)
        for group in GROUPS:
            bus.admin.commit_offsets(group, {first("written"): CommittedOffset(3)})
        view = bus.cluster()
        moves = {
            first(name): view.topics[name].partitions[0].replicas[::-1] for name in ("led", "led-2")
        }
        reassign(bus, moves | {first("moved"): (0,)})
        bus.admin.run(users.set_password, "bob", PASSWORD, list(ScramMechanism))
        bus.admin.run(acls.create_acls, [acl_of_words(ACL)])
        yield bus


@pytest.fixture(scope="module")
def console(secured: LocalCluster, bus: Bus) -> Iterator[RunningConsole]:
    """A console in which the administrator has signed in."""
    running = RunningConsole(secured.bootstrap_servers, "-F", str(secured.client_config))
    login = {"user": "admin", "password": login_of(secured)["sasl.password"]}
    assert running.post("/login", login).status == 303
    for group in GROUPS:
        until(lambda group=group: running.get(f"/groups/{group}").status == 200, what=group)
    yield running
    running.close()


def test_table_of_this_test_has_a_row_for_each_change() -> None:
    assert {change.path for change in CHANGES} == set(ROWS)
    assert {change.path for change in CHANGES if change.is_dangerous} <= set(DANGEROUS)


@pytest.mark.parametrize("path", ROWS)
def test_forged_form_of_a_change_is_refused_and_changes_nothing(
    console: RunningConsole, bus: Bus, path: str
) -> None:
    row = ROWS[path]
    before = row.state(bus)
    form = {**row.form, "typed": row.confirm}
    good = {**form, "token": token(console, row.path)}
    own, body = console.url.rstrip("/"), urlencode(good).encode()
    forged = [
        console.post(row.path, form),
        console.post(row.path, {**good, "token": "0" * 64}),
        console.post(row.path, good, Origin="http://evil.example"),
        console.send("POST", row.path, {}, body),
        console.post(row.path, good, Host="evil.example", Origin="http://evil.example"),
        console.send("PUT", row.path, {"Origin": own}, body),
    ]
    assert [answer.status for answer in forged] == [403, 403, 403, 403, 421, 405]
    assert console.get(f"{row.path}?{urlencode(good)}").status == 200
    assert row.state(bus) == before


@pytest.mark.parametrize("path", DANGEROUS)
def test_dangerous_change_that_is_cancelled_or_not_confirmed_changes_nothing(
    console: RunningConsole, bus: Bus, path: str
) -> None:
    row = ROWS[path]
    before = row.state(bus)
    plan = change(console, row.path, **row.form)
    assert plan.status == 200 and f"type <strong>{row.confirm}</strong>" in plan.text
    good = token(console, row.path)
    for typed in ("", "yes", row.confirm[:-1], row.confirm.upper()):
        refused = console.post(row.path, {**row.form, "token": good, "typed": typed})
        assert refused.status == 400 and "Nothing was changed" in refused.text
    (back,) = re.findall(r'<a class="button" href="(.*?)">Cancel</a>', plan.text)
    assert console.get(html.unescape(back)).status == 200
    assert row.state(bus) == before


@pytest.mark.parametrize("path", ROWS)
def test_confirmed_change_is_made_and_logged_with_its_user_and_object(
    console: RunningConsole, bus: Bus, path: str
) -> None:
    row = ROWS[path]
    (made,) = [change for change in CHANGES if change.path == path]
    before = row.state(bus)
    typed = {"typed": row.confirm} if row.confirm else {}
    done = change(console, row.path, **row.form, **typed)
    assert done.status == 303, done.text
    until(lambda: row.state(bus) != before, what="the change")
    line = console.logged(f"{made.verb} by 'admin'")
    assert row.logged in line and line.endswith(": done\n") and PASSWORD not in line
