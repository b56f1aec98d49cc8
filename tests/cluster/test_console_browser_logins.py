"""Open the console of a secured cluster in a real browser: logins, ended sessions, the pages of an
administrator and of a user with few permissions.

The console serves HTTPS. The tests are skipped without Chromium and chromedriver.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import confluent_kafka as ck
import pytest
from support.console import RunningConsole
from support.page_faults import HOSTILE, faults_of
from support.patience import until
from support.webdriver import Browser

from broker_lite.bus import Bus, connect
from broker_lite.client.administration import acls, users
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TRANSACTION_STATE, ScramMechanism, TopicPartition
from broker_lite.security.acls import (
    Acl,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

ALICE, PASSWORD = "alice", "correct horse"
WAIT_S = 30.0
SCRIPTS = pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])


def grant(
    user: str, operation: Operation, kind: ResourceKind, name: str, *, denies: bool = False
) -> Acl:
    permission = Permission.DENY if denies else Permission.ALLOW
    pattern = Pattern(kind, PatternType.LITERAL, name)
    return Acl(pattern, Entry(f"User:{user}", "*", operation, permission))


ACLS = [
    grant(ALICE, Operation.READ, ResourceKind.TOPIC, "seen"),
    grant(ALICE, Operation.DESCRIBE, ResourceKind.GROUP, "mixed"),
    grant(HOSTILE, Operation.WRITE, ResourceKind.TOPIC, "seen", denies=True),
]
REMOVED = {
    "principal": f"User:{HOSTILE}",
    "permission": "deny",
    "operation": "write",
    "resource": "topic",
    "name": "seen",
    "pattern": "literal",
    "host": "*",
}
HANGING = {"topic": "seen", "partition": "0", "start_offset": "1"}
ADMIN_PAGES = (
    "/",
    "/brokers/0",
    "/topics",
    "/topics/payroll/messages",
    "/groups/mixed",
    "/transactions",
    "/transactions?q=nothing-has-this-name",
    f"/transactions/abort?{urlencode(HANGING)}",
    "/users",
    "/users?q=nothing-has-this-name",
    "/users/add",
    f"/users/{quote(HOSTILE, safe='')}/delete",
    "/acls",
    "/acls?q=nothing-has-this-name",
    "/acls/add",
    f"/acls/remove?{urlencode(REMOVED)}",
)
ADMIN_PLANS = (f"/transactions/abort?{urlencode(HANGING)}", f"/acls/remove?{urlencode(REMOVED)}")
ALICE_PAGES = {
    "/": 200,
    "/brokers": 200,
    "/brokers/0": 200,
    "/topics": 200,
    "/topics/seen/messages": 200,
    "/topics/seen/partitions": 200,
    "/topics/seen/groups": 200,
    "/topics/payroll/messages": 404,
    "/groups": 200,
    "/groups/mixed": 200,
    "/groups/mixed/delete": 200,
    "/transactions": 200,
    "/users": 403,
    "/acls": 403,
    "/nothing-here": 404,
}
"""The HTTP status of each page for the user alice, who may not describe the topic payroll."""


def login_of(cluster: LocalCluster) -> dict[str, str]:
    """Return the settings of librdkafka with which user admin logs in."""
    lines = Path(cluster.client_config or "").read_text("utf-8").splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def leave_hanging(cluster: LocalCluster, bus: Bus) -> None:
    """Leave an open transaction at HANGING, and delete the only copy of its coordinator's state."""
    producer = ck.Producer({**login_of(cluster), "transactional.id": "lost-copier", "log_level": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("seen", b"hidden", partition=0)
    assert producer.flush(WAIT_S) == 0
    topic_id = bus.cluster().topics[TRANSACTION_STATE].topic_id
    (broker,) = cluster.brokers
    broker.stop()
    for folder in cluster.directory.glob(f"broker-*/data/{topic_id}-*"):
        shutil.rmtree(folder)
    broker.start()


@pytest.fixture(scope="module")
def secured(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """A cluster with a topic that alice may read, a topic that she may not describe, a group that
    reads both, and a transaction that hangs."""
    cluster = make_module_cluster(1, secure=True)
    with connect(cluster.bootstrap_servers, client_config=cluster.client_config) as bus:
        for name in ("seen", "payroll"):
            bus.create_topic(name, partitions=1)
            with bus.producer() as producer:
                producer.send(name, f"in {name}".encode())
            bus.admin.commit_offsets("mixed", {TopicPartition(name, 0): 0})
        leave_hanging(cluster, bus)
        with bus.transaction(HOSTILE) as transaction:
            transaction.send("payroll", b"paid")
        for name in (ALICE, HOSTILE):
            bus.admin.run(users.set_password, name, PASSWORD, list(ScramMechanism))
        bus.admin.run(acls.create_acls, ACLS)
    return cluster


@pytest.fixture(scope="module")
def console(secured: LocalCluster) -> Iterator[RunningConsole]:
    config = Path(secured.client_config or "")
    running = RunningConsole(
        secured.bootstrap_servers,
        *("-F", str(config)),
        *("--tls-certificate", str(config.with_name("broker-0-clients.pem"))),
        trusted=str(config.with_name("clients-ca.pem")),
    )
    until(lambda: running.get("/healthz").status == 200, what="the first reading")
    yield running
    running.close()


def sign_in(page: Browser, user: str, password: str, address: str) -> None:
    """Fill the form of the login page; wait for the page at ``address``."""
    page.type("#user", user)
    page.type("#password", password)
    page.follow("main button", address)


@SCRIPTS
def test_visitor_logs_in_after_a_wrong_password_sees_the_requested_page_and_logs_out(
    page: Browser, console: RunningConsole, scripts: bool
) -> None:
    page.allow_scripts(scripts)
    wanted = f"{console.url}topics/seen/messages?text=in"
    page.open(wanted)
    assert page.url == f"{console.url}login?next=/topics/seen/messages%3Ftext%3Din"
    assert faults_of(page) == []
    sign_in(page, ALICE, "n0t-it", "/login")
    assert page.text("[role=alert]") == "The user or the password is wrong."
    assert faults_of(page, 401) == []
    focused = "return [document.activeElement.id, document.getElementById('user').value]"
    assert page.run(focused) == ["password", ALICE]

    page.type("#password", PASSWORD)
    page.follow("main button", wanted)
    assert page.text("#records .record summary") == "in seen" and faults_of(page) == []
    page.follow(".rail-foot button", "/login")
    assert faults_of(page) == []
    page.open(wanted)
    assert "/login?next=" in page.url


@SCRIPTS
def test_every_page_of_a_secured_console_is_legible_to_an_administrator(
    page: Browser, console: RunningConsole, secured: LocalCluster, scripts: bool
) -> None:
    page.allow_scripts(scripts)
    page.open(f"{console.url}login")
    sign_in(page, "admin", login_of(secured)["sasl.password"], console.url)
    found = {}
    for path in ADMIN_PAGES:
        page.open(console.url.rstrip("/") + path)
        found[path] = faults_of(page)
    for path in ADMIN_PLANS:
        page.open(console.url.rstrip("/") + path)
        page.click("button.primary")
        until(lambda: page.count(".plan"), what=f"the plan of {path}")
        found[f"the plan of {path}"] = faults_of(page)
    assert not {path: faults for path, faults in found.items() if faults}
    page.open(f"{console.url}transactions")
    assert page.text("[data-live=open] .state") == "Hangs"


@SCRIPTS
def test_pages_show_a_user_nothing_about_topics_that_the_user_may_not_describe(
    page: Browser, console: RunningConsole, scripts: bool
) -> None:
    page.allow_scripts(scripts)
    page.open(f"{console.url}login")
    sign_in(page, ALICE, PASSWORD, console.url)
    found = {}
    for path, status in ALICE_PAGES.items():
        page.open(console.url.rstrip("/") + path)
        found[path] = faults_of(page, status)
        shown = page.run("return document.documentElement.outerHTML")
        for word in ("payroll", "lost-copier", "Hangs"):
            if word in shown and word not in path:
                found[path].append(f"the page contains {word!r}")
    assert not {path: faults for path, faults in found.items() if faults}


@SCRIPTS
def test_user_whose_session_has_ended_logs_in_again_and_sees_the_requested_page(
    page: Browser, console: RunningConsole, scripts: bool
) -> None:
    page.allow_scripts(scripts)
    page.open(f"{console.url}login")
    sign_in(page, HOSTILE, PASSWORD, console.url)
    page.open(f"{console.url}topics?sort=records")
    assert page.text(".who") == HOSTILE and faults_of(page) == []
    (cookie,) = page.command("Network.getCookies")["cookies"]
    flags = {name: cookie[name] for name in ("httpOnly", "secure", "sameSite", "session")}
    assert flags == {"httpOnly": True, "secure": True, "sameSite": "Strict", "session": True}
    assert cookie["name"] == console.cookie_name and page.run("return document.cookie") == ""

    # End the session in another browser, so that this one keeps its cookie.
    ended = console.post("/logout", {}, Cookie=f"{cookie['name']}={cookie['value']}")
    assert ended.status == 303
    asked = "/topics?sort=records" if scripts else "/groups"
    if scripts:
        # The page's own timer calls this function every five seconds.
        page.run("refresh()")
        until(lambda: page.url.endswith(f"/login?next={quote(asked)}"), what="the login page")
    else:
        page.follow(f'nav a[href="{asked}"]', f"/login?next={quote(asked)}")
    sign_in(page, HOSTILE, PASSWORD, asked)
    assert page.status == 200 and page.complaints() == []
