"""Open the console in a real browser: light, dark and narrow, with and without scripts.

The tests are skipped without Chromium and chromedriver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from support.console import RunningConsole
from support.page_faults import HOSTILE, faults_of
from support.patience import until
from support.webdriver import Browser

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, GROUP = "browsed", "browsing"
PAGES = (
    "/",
    "/brokers",
    "/brokers/0",
    "/brokers/elect",
    "/brokers/0/retire",
    "/topics",
    "/topics?q=nothing-has-this-name",
    "/topics/new",
    f"/topics/{TOPIC}/messages",
    f"/topics/{TOPIC}/messages?view=fields",
    f"/topics/{TOPIC}/messages?text=absent",
    f"/topics/{TOPIC}/partitions",
    f"/topics/{TOPIC}/settings",
    f"/topics/{TOPIC}/groups",
    f"/topics/{TOPIC}/produce",
    f"/topics/{TOPIC}/alter?setting=retention.ms",
    f"/topics/{TOPIC}/elect",
    f"/topics/{TOPIC}/trim",
    f"/topics/{TOPIC}/reassign",
    f"/topics/{TOPIC}/delete",
    "/groups",
    f"/groups/{GROUP}",
    f"/groups/{GROUP}/move",
    f"/groups/{GROUP}/delete",
    "/transactions",
    "/transactions/abort",
    "/users",
    "/users/add",
    "/users/nobody/delete",
)
PLANS = {
    f"/topics/{TOPIC}/alter?setting=retention.ms": ("#value", "1"),
    f"/topics/{TOPIC}/reassign": ("#brokers", "0,1"),
    f"/topics/{TOPIC}/trim": ("#before", "latest"),
    f"/groups/{GROUP}/move": ("#to", "latest"),
}
"""A field of each form, by the form's address, and a text with which the form shows its plan."""


@pytest.fixture(scope="module")
def bus(cluster: LocalCluster) -> Iterator[Bus]:
    with connect(cluster.bootstrap_servers) as connected:
        yield connected


@pytest.fixture(scope="module")
def console(cluster: LocalCluster, bus: Bus) -> Iterator[RunningConsole]:
    """A console of a cluster with one group and one topic, whose records contain HTML."""
    bus.create_topic(TOPIC, partitions=3, if_not_exists=True)
    with bus.producer() as producer:
        for number in range(30):
            value = json.dumps({"number": number, "text": HOSTILE})
            producer.send(TOPIC, value.encode(), key=HOSTILE.encode(), headers=[("h", b"\\xff")])
        producer.send(TOPIC, HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
        producer.send(TOPIC, bytes(range(256)))
    bus.admin.commit_offsets(GROUP, {TopicPartition(TOPIC, 0): 0})
    running = RunningConsole(cluster.bootstrap_servers)
    until(lambda: running.get(f"/groups/{GROUP}").status == 200, what="the group")
    yield running
    running.close()


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_every_console_page_is_legible_and_logs_no_error_in_the_browser(
    page: Browser, console: RunningConsole, scripts: bool
) -> None:
    page.allow_scripts(scripts)
    found = {}
    for path in PAGES:
        page.open(console.url.rstrip("/") + path)
        found[path] = faults_of(page)
    for path, (field, text) in PLANS.items():
        page.open(console.url.rstrip("/") + path)
        page.type(field, text)
        page.click("button.primary")
        until(lambda: page.count(".plan"), what=f"the plan of {path}")
        found[f"the plan of {path}"] = faults_of(page)
    page.open(f"{console.url}topics/{TOPIC}/reassign")
    page.type("#brokers", "none")
    page.click("button.primary")
    until(lambda: page.count("[role=alert]"), what="the refusal of brokers without ids")
    found["a refused form"] = faults_of(page, 400)
    assert not {path: faults for path, faults in found.items() if faults}


FOCUSABLE = """
const kinds = "a[href], button, summary, input, select, textarea, [tabindex='0']";
const all = document.querySelectorAll(kinds);
return [...all].filter((element) => element.type !== "hidden" && element.checkVisibility()).length;
"""
FOCUSED = """
const style = getComputedStyle(document.activeElement);
if (document.activeElement === document.body) return null;
const all = [...document.querySelectorAll("*")];
return [all.indexOf(document.activeElement), style.outlineStyle !== "none"];
"""
TAB = "\ue004"


@pytest.mark.parametrize(
    "path", ["", f"topics/{TOPIC}/messages", f"topics/{TOPIC}/delete", f"groups/{GROUP}"]
)
def test_keyboard_reaches_every_control_and_shows_its_focus(
    page: Browser, console: RunningConsole, path: str
) -> None:
    page.open(console.url + path)
    # Stop the page's refresh, which would number its elements anew.
    page.run("document.body.dataset.still = ''")
    wanted, reached = page.run(FOCUSABLE), set()
    for _ in range(wanted + 2):
        page.press(TAB)
        focused = page.run(FOCUSED)
        if focused is not None:
            number, has_outline = focused
            assert has_outline, page.run("return document.activeElement.outerHTML")
            reached.add(number)
    assert len(reached) == wanted > 10


def test_open_page_shows_that_a_broker_was_killed(
    page: Browser, make_cluster: Callable[..., LocalCluster]
) -> None:
    small = make_cluster(2)
    with connect(small.bootstrap_servers) as connected:
        connected.create_topic("held", partitions=4, replication_factor=2)
    running = RunningConsole(small.bootstrap_servers)
    try:
        page.open(running.url)
        assert page.text(".verdict .state") == "Healthy"
        small.brokers[1].kill()
        # Find and read the element in one script: a refresh may replace it between two scripts.
        text = "return document.querySelector(arguments[0])?.innerText ?? ''"
        # Both replicas must be in sync for acks=all, so one killed broker makes the state critical.
        until(lambda: page.run(text, ".verdict .state") == "Critical", what="the verdict")
        until(lambda: "start the brokers" in page.run(text, ".causes"), what="the cure")
        until(lambda: "Down" in page.run(text, "[data-live=brokers]"), what="the broker")
        assert page.complaints() == []
        for path in ("", "brokers/1", "brokers/1/retire", "topics/held/partitions"):
            page.open(running.url + path)
            assert faults_of(page) == [], path
    finally:
        running.close()


def test_console_pages_work_without_javascript(
    page: Browser, console: RunningConsole, bus: Bus
) -> None:
    page.allow_scripts(False)
    page.open(console.url)
    page.follow('nav a[href="/topics"]', "/topics")
    page.type("#q", TOPIC)
    page.follow(".find button", f"/topics?q={TOPIC}")
    assert page.count("tbody tr") == 1
    page.follow("tbody th a", f"/topics/{TOPIC}/messages")
    page.click(".record summary")
    assert page.count(".record[open]") == 1
    page.type("#text", "number")
    page.follow(".ask button.primary", "text=number&header=")
    assert page.count("#records tbody tr") == 30

    made = f"{console.url}topics/made-without-scripts"
    page.open(f"{console.url}topics/new")
    page.type("#name", "made-without-scripts")
    page.follow("button.primary", "?done=topics-new")
    assert "The topic is created." in page.text('[role="status"]')
    page.open(f"{made}/delete")
    page.follow(".buttons a", "/topics/made-without-scripts/messages")
    assert "made-without-scripts" in bus.topics()
    page.open(f"{made}/delete")
    page.type("#typed", "made-without-scripts")
    page.follow("button.danger", "?done=topics-topic-delete")
    assert "The topic is deleted." in page.text('[role="status"]')
    assert "made-without-scripts" not in bus.topics()


def test_a_live_tail_shows_new_records_and_stops(
    page: Browser, console: RunningConsole, bus: Bus
) -> None:
    page.open(f"{console.url}topics/{TOPIC}/messages")
    page.click("#tail")

    def sent() -> bool:
        with bus.producer() as producer:
            producer.send(TOPIC, f"live {HOSTILE}".encode())
        return bool(page.count("tr.fresh"))

    until(sent, what="a record in the tail")
    shown = page.run("return document.querySelector('tr.fresh summary').innerText")
    assert "live" in shown and "owned" not in page.title
    page.click("#tail")
    assert page.text("#tail") == "Live tail" and page.complaints() == []


RECORD_TAILS = """
window.tails = [];
const Real = window.EventSource;
window.EventSource = class extends Real {
  constructor(address) { super(address); window.tails.push(this); }
};
"""


def test_live_tail_shows_how_many_records_it_skipped(
    page: Browser, console: RunningConsole, bus: Bus
) -> None:
    bus.create_topic("flooded", partitions=1, if_not_exists=True)
    address = "topics/flooded/messages"
    until(lambda: console.get(f"/{address}").status == 200, what="the topic")
    page.open(f"{console.url}{address}")
    page.run(RECORD_TAILS)
    page.click("#tail")
    until(lambda: page.run("return window.tails[0].readyState") == 1, what="the tail")
    # All records are in one batch, so the tail reads them at once.
    with bus.producer(linger_ms=1000) as producer:
        for _ in range(400):
            producer.send("flooded", b"v")

    def counted() -> list[int]:
        return [int(number) for number in re.findall(r"\d+", page.text("#tail"))]

    until(lambda: sum(counted()) == 400, what=lambda: page.text("#tail"))
    seen, skipped = counted()
    assert page.text("#tail") == f"Stop the tail ({seen} new, {skipped} skipped)"
    assert page.count("tr.fresh") == seen and page.complaints() == []


def test_live_tail_pauses_while_its_page_is_hidden(
    page: Browser, console: RunningConsole, bus: Bus
) -> None:
    page.open(f"{console.url}topics/{TOPIC}/messages")
    page.run(RECORD_TAILS)
    states = "return window.tails.map((tail) => tail.readyState)"
    opened, closed = 1, 2
    page.click("#tail")
    until(lambda: page.run(states) == [opened], what="the tail")
    with page.other_tab():
        until(lambda: page.run("return document.hidden"), what="the hidden page")
        assert page.run(states) == [closed]
        with bus.producer() as producer:
            producer.send(TOPIC, b"sent to the hidden page")
    until(lambda: page.run(states) == [closed, opened], what="the tail again")
    shown = "return document.getElementById('records').innerText"
    until(lambda: "sent to the hidden page" in page.run(shown), what="the record")
    assert page.complaints() == []


def test_page_that_refreshes_itself_keeps_the_text_that_the_user_typed(
    page: Browser, console: RunningConsole, bus: Bus
) -> None:
    page.open(f"{console.url}topics?sort=name")
    page.press("/")
    assert page.run("return document.activeElement.id") == "q"
    page.type("#q", "half a na")
    bus.create_topic("appears-by-itself", if_not_exists=True)
    shown = "return document.querySelector('tbody').innerText"
    until(lambda: "appears-by-itself" in page.run(shown), what="the new topic")
    assert page.run("return document.getElementById('q').value") == "half a na"
    assert page.complaints() == []


def test_page_reports_that_the_console_has_stopped(page: Browser, cluster: LocalCluster) -> None:
    ending = RunningConsole(cluster.bootstrap_servers)
    page.open(f"{ending.url}topics")
    ending.close()
    until(lambda: page.count("#warning"), what="the warning")
    assert "does not answer" in page.text("#warning")
    page.complaints()
