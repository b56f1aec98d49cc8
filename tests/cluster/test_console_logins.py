"""Test a console of brokers that require logins: sessions, the objects that a user sees, requests
that ACLs deny.
"""

from __future__ import annotations

import base64
import gc
import http.client
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.console import ANSWER_S, Answer, RunningConsole, check_json_of_page
from support.patience import until

from broker_lite.bus import Bus, connect
from broker_lite.client.administration import acls, users
from broker_lite.config.secret import Secret
from broker_lite.console.sessions import (
    IDLE_S,
    LIFE_S,
    LOGINS_AT_ONCE,
    VISIBLE_S,
    Sessions,
    TooManyLoginsError,
)
from broker_lite.console.settings import ConsoleSettings
from broker_lite.errors import SaslAuthenticationError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import ScramMechanism, TopicPartition
from broker_lite.security.acls import (
    Acl,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)
from broker_lite.security.scram import ScramKeys

pytestmark = pytest.mark.real

ALICE, PASSWORD = "alice", "correct horse"


def allow(kind: ResourceKind, name: str, operation: Operation) -> Acl:
    return Acl(
        Pattern(kind, PatternType.LITERAL, name),
        Entry(f"User:{ALICE}", "*", operation, Permission.ALLOW),
    )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("console")
    with LocalCluster(1, directory=folder / "cluster", secure=True) as running:
        yield running


@pytest.fixture(scope="module")
def admin_bus(secured: LocalCluster) -> Iterator[Bus]:
    """Connect as administrator; create topics 'seen' and 'secret', and let alice read 'seen'."""
    with connect(secured.bootstrap_servers, client_config=secured.client_config) as bus:
        for name in ("seen", "secret"):
            bus.create_topic(name, partitions=1)
            with bus.producer() as producer:
                producer.send(name, f"in {name}".encode())
        chosen = list(ScramMechanism)
        bus.admin.run(users.set_password, ALICE, PASSWORD, chosen)
        rows = [
            allow(ResourceKind.TOPIC, "seen", Operation.READ),
            allow(ResourceKind.TOPIC, "seen", Operation.DESCRIBE),
            allow(ResourceKind.GROUP, "mixed", Operation.DESCRIBE),
        ]
        bus.admin.run(acls.create_acls, rows)
        yield bus


@pytest.fixture(scope="module")
def process(secured: LocalCluster, admin_bus: Bus) -> Iterator[RunningConsole]:
    running = RunningConsole(secured.bootstrap_servers, "-F", str(secured.client_config))
    until(lambda: running.get("/healthz").status == 200, what="the first reading")
    yield running
    running.close()


@pytest.fixture
def console(process: RunningConsole) -> RunningConsole:
    """Return a console client that is not logged in."""
    process.cookie = ""
    return process


def sign_in(console: RunningConsole, user: str, password: str, target: str = "/") -> Answer:
    return console.post("/login", {"user": user, "password": password, "next": target})


def password_of(secured: LocalCluster) -> str:
    text = Path(secured.client_config or "").read_text("utf-8")
    found = re.search(r"^sasl.password=(.*)$", text, re.MULTILINE)
    assert found
    return found[1]


def topics(console: RunningConsole) -> set[str]:
    return {row["name"] for row in console.json("/topics")["topics"]["rows"]}


def test_visitor_without_a_login_sees_no_page_of_the_console(console: RunningConsole) -> None:
    page = console.get("/topics?q=se")
    assert (page.status, page.headers["location"]) == (303, "/login?next=/topics%3Fq%3Dse")
    twin = console.get("/api/v1/topics")
    assert twin.status == 401 and "seen" not in twin.text
    for path in ("/topics/seen/messages", "/topics/seen/tail", "/topics/seen/export", "/users"):
        assert console.get(path).status in (303, 401), path
    assert console.post("/topics/seen/delete", {"typed": "seen"}).status == 303
    assert set(console.get("/healthz").json) == {"state"}
    console.cookie = f"{console.cookie_name}=forged"
    assert console.get("/topics").status == 303


@pytest.mark.parametrize(("user", "password"), [(ALICE, "n0t-it"), ("nobody", "n0t-it"), ("", "")])
def test_console_refuses_a_login_with_a_wrong_user_or_password(
    console: RunningConsole, user: str, password: str
) -> None:
    answer = sign_in(console, user, password)
    assert answer.status == 401 and "set-cookie" not in answer.headers
    assert "n0t-it" not in answer.text and "sasl" not in answer.text


def test_login_from_another_site_is_refused(console: RunningConsole) -> None:
    fields = {"user": ALICE, "password": PASSWORD}
    assert console.post("/login", fields, Origin="http://evil.example").status == 403


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_metrics_requests_of_other_machines_need_a_user_that_may_describe_the_cluster(
    secured: LocalCluster, admin_bus: Bus
) -> None:
    config = Path(secured.client_config or "")
    running = RunningConsole(
        secured.bootstrap_servers,
        *("-F", str(config), "--no-pages", "--host", "0.0.0.0"),
        *("--tls-certificate", str(config.with_name("broker-0-clients.pem"))),
        trusted=str(config.with_name("clients-ca.pem")),
    )
    try:
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")
        anonymous = running.get("/metrics")
        assert (anonymous.status, "Basic" in anonymous.headers["www-authenticate"]) == (401, True)
        for user, password, status in (
            (ALICE, "wrong", 401),
            (ALICE, PASSWORD, 403),
            ("admin", password_of(secured), 200),
            ("admin", password_of(secured), 200),
        ):
            answer = running.get("/metrics", Authorization=basic(user, password))
            assert (answer.status, "logbus_" in answer.text) == (status, status == 200)
    finally:
        assert running.close() == 0


def test_metrics_requests_with_the_same_login_share_a_console_session(
    admin_bus: Bus, secured: LocalCluster
) -> None:
    sessions = Sessions(admin_bus, ConsoleSettings())
    try:
        first, second = (sessions.scraper(basic("admin", password_of(secured))) for _ in range(2))
        assert first.bus is second.bus
        with pytest.raises(SaslAuthenticationError):
            sessions.scraper("Bearer x")
    finally:
        sessions.close()


@pytest.mark.parametrize("path", ["/login", "/topics/seen/delete"])
@pytest.mark.parametrize("body", [b"user=%00\xff", b"&".join([b"a=1"] * 51)])
def test_console_refuses_a_login_form_that_cannot_be_decoded(
    console: RunningConsole, path: str, body: bytes
) -> None:
    sign_in(console, ALICE, PASSWORD)
    answer = console.send("POST", path, {"Origin": console.url.rstrip("/")}, body)
    assert answer.status == 400 and "form cannot be read" in answer.text


def test_login_beyond_the_limit_of_concurrent_logins_is_refused_without_waiting(
    admin_bus: Bus,
) -> None:
    """Waiting logins must not block the threads that serve pages."""
    sessions = Sessions(admin_bus, ConsoleSettings())
    with ThreadPoolExecutor(40) as threads:
        logins = [threads.submit(sessions.sign_in, ALICE, "n0t-it") for _ in range(40)]
    kinds = [type(login.exception()) for login in logins]
    assert set(kinds) == {SaslAuthenticationError, TooManyLoginsError}
    assert kinds.count(SaslAuthenticationError) >= LOGINS_AT_ONCE


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_login_does_not_redirect_to_another_site(console: RunningConsole, target: str) -> None:
    assert sign_in(console, ALICE, PASSWORD, target).headers["location"] == "/"


def test_session_cookie_is_hidden_from_scripts_and_other_sites_from_login_to_logout(
    console: RunningConsole,
) -> None:
    """Regression: with --port 0, every console used the same cookie, so that a login at one
    console ended the login at another."""
    for answer in (sign_in(console, ALICE, PASSWORD), console.post("/logout", {})):
        name, *attributes = answer.headers["set-cookie"].split(";")
        assert name.partition("=")[0] == console.cookie_name
        given = {each.strip().lower() for each in attributes}
        assert {"httponly", "samesite=strict", "path=/"} <= given
        # Over plain HTTP, a browser would not store a cookie with this attribute.
        assert "secure" not in given


def test_user_sees_only_what_acls_allow(console: RunningConsole) -> None:
    answer = sign_in(console, ALICE, PASSWORD, "/topics")
    assert (answer.status, answer.headers["location"]) == (303, "/topics")
    assert topics(console) == {"seen"}
    assert console.json("/topics/seen/messages")["records"][0]["value"]["text"] == "in seen"
    for path in ("/topics/secret/messages", "/topics/secret/export"):
        refused = console.get(path)
        assert refused.status == 404 and "in secret" not in refused.text
    assert "secret" not in console.get("/").text and "secret" not in console.get("/brokers/0").text
    assert console.json("/brokers")["brokers"][0]["disk_used"] is None
    for path in ("/users", "/acls"):
        assert console.get(path).status == 403, path


def test_page_of_a_visible_group_does_not_name_topics_that_the_user_may_not_see(
    console: RunningConsole, admin_bus: Bus, secured: LocalCluster
) -> None:
    """Regression: the chart of the group's lag also counted records of these topics."""
    for topic in ("seen", "secret"):
        admin_bus.admin.commit_offsets("mixed", {TopicPartition(topic, 0): 0})
    sign_in(console, ALICE, PASSWORD)
    until(lambda: console.get("/groups/mixed").status == 200, what="the group")
    # The console's first sample of the group may be older than the group's offsets.
    until(lambda: console.json("/groups/mixed")["partitions"]["rows"], what="offsets of the group")
    found = console.json("/groups/mixed")
    assert [part["topic"] for part in found["partitions"]["rows"]] == ["seen"]
    assert (found["group"]["topics"], found["group"]["lag"]) == (["seen"], 1)
    for path in ("/groups", "/groups/mixed", "/groups/mixed/move", "/groups/mixed/delete"):
        assert "secret" not in console.get(path).text, path
    (row,) = console.json("/groups")["groups"]["rows"]
    assert found["history"] is None and row["trend"] == []
    assert set(console.json("")["history"].values()) == {None}
    assert "chart would count topics that you may not describe" in console.get("/").text
    sign_in(console, "admin", password_of(secured))
    assert console.json("/groups/mixed")["history"] and console.json("")["history"]["lag"]


def test_console_user_without_permission_cannot_delete_a_topic(
    console: RunningConsole, admin_bus: Bus
) -> None:
    sign_in(console, ALICE, PASSWORD)
    page = console.get("/topics/seen/delete")
    found = re.search(r'name="token" value="([0-9a-f]{64})"', page.text)
    assert found
    refused = console.post("/topics/seen/delete", {"token": found[1], "typed": "seen"})
    assert refused.status == 400 and "seen" in admin_bus.topics()


def test_administrator_sees_every_topic_and_group_in_the_console(
    console: RunningConsole, secured: LocalCluster
) -> None:
    sign_in(console, "admin", password_of(secured))
    assert topics(console) >= {"seen", "secret"}
    assert {row["name"] for row in console.json("/users")["users"]["rows"]} == {"admin", ALICE}
    rows = console.json("/acls")["acls"]["rows"]
    assert {(row["principal"], row["operation"], row["name"]) for row in rows} == {
        (f"User:{ALICE}", "read", "seen"),
        (f"User:{ALICE}", "describe", "seen"),
        (f"User:{ALICE}", "describe", "mixed"),
    }


@pytest.mark.parametrize("path", ["/users", "/acls"])
def test_pages_of_users_and_acls_are_also_served_as_json(
    console: RunningConsole, secured: LocalCluster, path: str
) -> None:
    sign_in(console, "admin", password_of(secured))
    check_json_of_page(console, path)


def test_console_adds_and_removes_users_and_acls(
    console: RunningConsole, secured: LocalCluster
) -> None:
    sign_in(console, "admin", password_of(secured))

    def change(path: str, **fields: str) -> Answer:
        found = re.search(r'name="token" value="([0-9a-f]{64})"', console.get(path).text)
        assert found
        return console.post(path, {"token": found[1], **fields})

    assert change("/users/add", name="bob", password="tr0ub4dor").status == 303
    entry = {
        "principal": "bob",
        "permission": "allow",
        "operation": "describe",
        "resource": "topic",
        "name": "*",
        "pattern": "literal",
        "host": "*",
    }
    assert change("/acls/add", **entry).status == 303
    assert change("/acls/add", **{**entry, "operation": "fly"}).status == 400
    bob = RunningConsole.__new__(RunningConsole)
    bob.url, bob.cookie = console.url, ""
    sign_in(bob, "bob", "tr0ub4dor")
    assert topics(bob) >= {"seen", "secret"}
    assert change("/acls/remove", **entry, typed="User:bob").status == 303
    assert change("/users/bob/delete", typed="bob").status == 303
    assert sign_in(console, "bob", "tr0ub4dor").status == 401


def test_console_session_ends_when_the_user_logs_out(console: RunningConsole) -> None:
    sign_in(console, ALICE, PASSWORD)
    held = console.cookie
    assert console.get("/topics").status == 200
    assert console.post("/logout", {}).status == 303
    console.cookie = held
    assert console.get("/topics").status == 303


def test_console_still_lists_the_topics_a_user_may_see_while_brokers_do_not_answer(
    tmp_path: Path,
) -> None:
    """Regression: every page failed with status 500 and blocked a thread of the console."""
    now_s = [0.0]
    with (
        LocalCluster(1, directory=tmp_path / "cluster", secure=True) as cluster,
        connect(cluster.bootstrap_servers, client_config=cluster.client_config) as bus,
    ):
        bus.create_topic("kept", partitions=1)
        sessions = Sessions(bus, ConsoleSettings(), clock=lambda: now_s[0])
        try:
            session_id = sessions.sign_in("admin", password_of(cluster))
            first = sessions.viewer(session_id)
            assert first is not None and first.visible is not None
            assert "kept" in first.visible.topics
            # A paused broker accepts connections but does not answer, so requests time out.
            cluster.brokers[0].pause()
            now_s[0] += VISIBLE_S + 1
            old = replace(first, is_old=True)
            assert sessions.viewer(session_id) == old
            # Only one thread waits for the brokers, however many pages are requested.
            (asking,) = [each for each in threading.enumerate() if each.name == "logbus-names"]
            assert sessions.viewer(session_id) == old
            cluster.brokers[0].resume()
            asking.join()
            assert sessions.viewer(session_id) == first
        finally:
            sessions.close()


def test_changed_password_ends_the_users_console_session(admin_bus: Bus) -> None:
    now_s = [0.0]
    chosen = list(ScramMechanism)

    def change(password: str) -> None:
        admin_bus.admin.run(users.set_password, "carol", password, chosen)

    change("first pass")
    sessions = Sessions(admin_bus, ConsoleSettings(), clock=lambda: now_s[0])
    try:
        session_id = sessions.sign_in("carol", "first pass")
        viewer = sessions.viewer(session_id)
        assert viewer is not None
        change("second pass")
        # Close the connections, because brokers check credentials only when a connection opens.
        viewer.bus.admin.close()
        now_s[0] += VISIBLE_S + 1
        assert sessions.viewer(session_id) is None
    finally:
        sessions.close()


def test_console_session_logs_in_with_scram_keys_and_keeps_no_password(admin_bus: Bus) -> None:
    """Regression: the console kept the password of each user for up to 12 hours."""
    now_s = [0.0]
    admin_bus.admin.run(users.set_password, "dora", "of dora alone", list(ScramMechanism))
    sessions = Sessions(admin_bus, ConsoleSettings(), clock=lambda: now_s[0])
    try:
        session_id = sessions.sign_in("dora", "of dora alone")
        viewer = sessions.viewer(session_id)
        assert viewer is not None and isinstance(viewer.bus.security.secret, ScramKeys)
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, Secret)]
        assert "of dora alone" not in [each.reveal() for each in kept]
        # Close the connections, so that the session logs in again.
        viewer.bus.admin.close()
        now_s[0] += VISIBLE_S + 1
        assert sessions.viewer(session_id) == viewer
    finally:
        sessions.close()


def test_live_tail_ends_when_its_login_session_ends(console: RunningConsole) -> None:
    sign_in(console, ALICE, PASSWORD)
    connection = http.client.HTTPConnection(console.address, timeout=ANSWER_S)
    try:
        connection.request("GET", "/topics/seen/tail", headers={"Cookie": console.cookie})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.readline() == b"retry: 1000\n"
        console.post("/logout", {})
        assert b"event: ended\ndata: " in answer.read()
    finally:
        connection.close()


def test_idle_console_session_expires(admin_bus: Bus) -> None:
    now_s = [0.0]
    sessions = Sessions(admin_bus, ConsoleSettings(), clock=lambda: now_s[0])
    try:
        session_id = sessions.sign_in(ALICE, PASSWORD)
        now_s[0] = IDLE_S - 1
        viewer = sessions.viewer(session_id)
        assert viewer is not None and viewer.user == ALICE
        now_s[0] = 2 * IDLE_S - 2
        assert sessions.viewer(session_id) is not None
        now_s[0] = 3 * IDLE_S
        assert sessions.viewer(session_id) is None
    finally:
        sessions.close()


def test_automatic_page_refreshes_do_not_renew_a_session(admin_bus: Bus) -> None:
    now_s = [0.0]
    sessions = Sessions(admin_bus, ConsoleSettings(), clock=lambda: now_s[0])
    try:
        session_id = sessions.sign_in(ALICE, PASSWORD)
        now_s[0] = IDLE_S - 1
        assert sessions.viewer(session_id, renews=False) is not None
        now_s[0] = IDLE_S + 1
        assert sessions.viewer(session_id, renews=False) is None
    finally:
        sessions.close()


def test_console_session_in_use_expires_after_its_maximum_age(admin_bus: Bus) -> None:
    now_s = [0.0]
    sessions = Sessions(admin_bus, ConsoleSettings(), clock=lambda: now_s[0])
    try:
        session_id = sessions.sign_in(ALICE, PASSWORD)
        while now_s[0] + IDLE_S <= LIFE_S:
            now_s[0] += IDLE_S
            assert sessions.viewer(session_id) is not None
        now_s[0] += IDLE_S
        assert sessions.viewer(session_id) is None
    finally:
        sessions.close()
