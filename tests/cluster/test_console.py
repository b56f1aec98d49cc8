"""Run ``logbus console`` on real brokers; check its pages, their JSON forms and the requests that
it refuses.
"""

from __future__ import annotations

import http.client
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from markupsafe import escape
from prometheus_client.parser import text_string_to_metric_families
from support.certificates import write_pem
from support.console import ANSWER_S, RunningConsole, check_json_of_page
from support.patience import until

from broker_lite import __version__
from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.observing.metrics import CLUSTER_METRICS
from broker_lite.server.metrics import PREFIX

pytestmark = pytest.mark.real

PAGES = ("", "/brokers", "/brokers/0", "/topics", "/groups", "/transactions")


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[RunningConsole]:
    running = RunningConsole(cluster.bootstrap_servers)
    yield running
    assert running.close() == 0


@pytest.fixture
def shown_topic(console: RunningConsole, topic: str) -> str:
    """Create a topic; wait until the console shows it, and return its name."""
    until(lambda: console.get(f"/api/v1/topics/{topic}/partitions").status == 200, what="the topic")
    return topic


@pytest.mark.parametrize("path", PAGES)
def test_each_page_is_also_served_as_json(console: RunningConsole, path: str) -> None:
    check_json_of_page(console, path)


def test_console_shows_the_partitions_groups_and_settings_of_a_topic(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    bus.admin.commit_offsets(f"g-{shown_topic}", {TopicPartition(shown_topic, 0): 0})
    with bus.producer() as producer:
        for number in range(7):
            producer.send(shown_topic, f"{number}".encode(), partition=0)
    until(
        lambda: console.json(f"/topics/{shown_topic}/partitions")["topic"]["records"] == 7,
        what="the records",
    )
    parts = console.json(f"/topics/{shown_topic}/partitions")["partitions"]["rows"]
    view = bus.admin.cluster([shown_topic]).topics[shown_topic]
    assert [row["leader"] for row in parts] == [part.leader for part in view.partitions]
    assert [row["end"] for row in parts] == [7, 0, 0]
    until(lambda: console.json(f"/topics/{shown_topic}/groups")["groups"]["rows"], what="the group")
    (group,) = console.json(f"/topics/{shown_topic}/groups")["groups"]["rows"]
    assert (group["name"], group["lag"]) == (f"g-{shown_topic}", 7)
    settings = console.json(f"/topics/{shown_topic}/settings")["settings"]
    assert {"retention.ms", "min.insync.replicas"} <= {row["name"] for row in settings}
    shown = console.json(f"/groups/g-{shown_topic}")
    assert [row["lag"] for row in shown["partitions"]["rows"]] == [7]
    assert f"g-{shown_topic}" in console.get(f"/groups?q={shown_topic}").text


def test_console_answers_404_with_a_message_for_missing_objects(console: RunningConsole) -> None:
    for path in ("/topics/nope/partitions", "/groups/nope", "/brokers/99", "/nope"):
        page, twin = console.get(path), console.get(f"/api/v1{path}")
        assert (page.status, twin.status) == (404, 404), path
        assert "Traceback" not in page.text and twin.json["message"]


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "../../etc"],
)
def test_html_in_searched_names_is_escaped(console: RunningConsole, name: str) -> None:
    for path in (f"/groups?q={quote(name)}", f"/topics?q={quote(name)}"):
        answer = console.get(path)
        assert str(escape(name)) in answer.text, path
        assert "<" not in name or name not in answer.text


def test_forged_host_header_is_refused(console: RunningConsole) -> None:
    answer = console.get("/", Host="evil.example")
    assert answer.status == 421 and "--allowed-host" in answer.text


def test_console_with_a_certificate_serves_only_https(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    pem = write_pem(tmp_path)
    running = RunningConsole(
        cluster.bootstrap_servers, "--tls-certificate", pem.certificate, trusted=pem.ca
    )
    try:
        until(lambda: running.get("/healthz").status == 200, what="the first reading")
        page = running.get("/topics/new")
        assert running.url.startswith("https://") and page.status == 200
        assert "secure" in page.headers["set-cookie"].lower()
        # The console refuses a form whose page came over another scheme than https.
        fields = {"token": "", "name": "x"}
        plain = running.url.replace("https:", "http:").rstrip("/")
        assert "Open the page again" in running.post("/topics/new", fields, Origin=plain).text
        assert "belongs to another session" in running.post("/topics/new", fields).text
        untrusting = http.client.HTTPSConnection(running.address, timeout=ANSWER_S)
        with pytest.raises(ssl.SSLCertVerificationError):
            untrusting.request("GET", "/")
        plain_text = http.client.HTTPConnection(running.address, timeout=ANSWER_S)
        plain_text.request("GET", "/healthz", headers={"Host": running.address})
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            plain_text.getresponse()
    finally:
        assert running.close() == 0


def test_healthz_returns_the_health_verdict(console: RunningConsole) -> None:
    until(lambda: console.get("/healthz").status == 200, what="the first reading")
    assert console.get("/healthz").json["state"] in ("ok", "warning")


def test_each_metric_of_the_console_is_documented_and_equals_the_clusters_state(
    console: RunningConsole, bus: Bus, shown_topic: str
) -> None:
    with bus.producer() as producer:
        for _ in range(4):
            producer.send(shown_topic, b"v", partition=1)
    bus.admin.commit_offsets(f"m-{shown_topic}", {TopicPartition(shown_topic, 1): 1})

    def scraped() -> dict[tuple[str, str], float]:
        families = list(text_string_to_metric_families(console.get("/metrics").text))
        ours = {family.name.removeprefix(PREFIX) for family in families if PREFIX in family.name}
        assert ours <= set(CLUSTER_METRICS)
        return {
            (row.name, row.labels.get("topic", "")): row.value
            for family in families
            for row in family.samples
        }

    until(lambda: scraped().get(("logbus_group_lag_records", shown_topic)) == 3, what="the lag")
    found = scraped()
    assert found["logbus_topic_records_total", shown_topic] == 4
    assert found["logbus_topic_partitions", shown_topic] == 3
    assert found["logbus_cluster_brokers", ""] == 3


def test_pages_of_300_partitions_and_110_groups_stay_below_200_kb(
    console: RunningConsole, bus: Bus, topic: str
) -> None:
    """The console splits long lists into pages of 100 rows."""
    name = f"{topic}-wide"
    bus.create_topic(name, partitions=300, replication_factor=1)
    for number in range(110):
        offsets = {TopicPartition(name, number + step): 0 for step in (0, 50, 100)}
        bus.admin.commit_offsets(f"{name}-{number}", offsets)
    wide = f"/topics/{name}/partitions"
    until(lambda: console.get(wide).status == 200, what="the topic")
    until(lambda: console.json(f"/groups?q={name}")["groups"]["total"] == 110, what="the groups")
    assert len(console.json(wide)["partitions"]["rows"]) == 100
    assert len(console.json(f"{wide}?page=3")["partitions"]["rows"]) == 100
    for path in ("/", "/topics", "/groups", "/brokers/0", wide, f"/topics/{name}/groups"):
        page = console.get(path)
        assert page.status == 200 and len(page.body) < 200_000, path


def test_console_with_the_option_no_pages_serves_only_metrics_and_health(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    group = f"e-{topic}"
    with bus.producer() as producer:
        for _ in range(5):
            producer.send(topic, b"v", partition=2)
    bus.admin.commit_offsets(group, {TopicPartition(topic, 1): 0, TopicPartition(topic, 2): 3})
    options = ("--no-pages", "--by-partition", "--compat", "kafka_exporter")
    exporter = RunningConsole(cluster.bootstrap_servers, *options)

    def scraped() -> dict[tuple[str, frozenset[str]], float]:
        return {
            (row.name, frozenset(row.labels.values())): row.value
            for family in text_string_to_metric_families(exporter.get("/metrics").text)
            for row in family.samples
        }

    try:
        own = "logbus_group_committed_offset", frozenset({group, topic, "2"})
        until(lambda: scraped().get(own) == 3, what="the group")
        found = scraped()
        assert found["logbus_partition_end_offset", frozenset({topic, "2"})] == 5
        expected = {
            ("brokers",): 3,
            ("topic_partitions", topic): 3,
            ("topic_partition_current_offset", topic, "2"): 5,
            ("topic_partition_oldest_offset", topic, "2"): 0,
            ("topic_partition_in_sync_replica", topic, "0"): 3,
            ("topic_partition_under_replicated_partition", topic, "0"): 0,
            ("consumergroup_current_offset", group, topic, "2"): 3,
            ("consumergroup_lag", group, topic, "2"): 2,
            ("consumergroup_lag_sum", group, topic): 2,
            ("consumergroup_members", group): 0,
        }
        for (name, *labels), value in expected.items():
            assert found[f"kafka_{name}", frozenset(labels)] == value, name
        for path in ("/", "/topics", "/topics/new", "/api/v1/topics"):
            assert exporter.get(path).status == 404, path
    finally:
        exporter.close()


def test_console_sorts_the_rows_of_a_list_by_the_requested_column(
    console: RunningConsole, bus: Bus
) -> None:
    for number in range(3):
        bus.create_topic(f"sorted-{number}", partitions=number + 1, if_not_exists=True)
    path = "/topics?q=sorted-&sort=partitions"
    until(lambda: console.json(path)["topics"]["total"] == 3, what="the topics")
    assert [row["partitions"] for row in console.json(path)["topics"]["rows"]] == [3, 2, 1]


def test_console_shows_the_last_known_state_of_the_cluster_while_no_broker_answers(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    small = make_cluster(1)
    console = RunningConsole(small.bootstrap_servers)
    try:
        until(lambda: console.get("/healthz").status == 200, what="the first reading")
        small.brokers[0].kill()
        until(lambda: console.get("/healthz").status == 503, what="the verdict")
        page = console.get("/")
        assert page.status == 200 and "The cluster does not answer." in page.text
        assert "Broker 0" in page.text
        assert console.get("/api/v1/brokers/0").json["settings_refusal"]
    finally:
        console.close()


def test_pages_show_new_records_while_zookeeper_is_down(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    small = make_cluster(1, own_zookeeper=True, config={"broker.rack": "zone-a"})
    console = RunningConsole(small.bootstrap_servers)
    try:
        until(lambda: console.get("/healthz").status == 200, what="the first reading")
        (row,) = console.json("/brokers")["brokers"]
        assert (row["rack"], row["version"]) == ("zone-a", __version__)
        with connect(small.bootstrap_servers) as bus, bus.producer() as producer:
            bus.create_topic("read", partitions=1)
            # A producer's first record needs ZooKeeper for a producer id.
            producer.send("read", b"with ZooKeeper").result()
            bus.admin.commit_offsets("reading", {TopicPartition("read", 0): 0})
            until(lambda: console.json("/groups")["groups"]["total"] == 1, what="the group")
            assert small.zookeeper_server is not None
            small.zookeeper_server.kill()
            until(lambda: console.json("")["cluster"]["zookeeper"]["connected"] == 0, what="it")
            producer.send("read", b"without ZooKeeper").result()
        assert len(console.json("/topics/read/messages")["records"]) == 2
        page = console.get("/groups/reading")
        assert page.status == 200 and "The offsets of groups cannot be read." in page.text
        assert "The cluster does not answer." not in page.text
        assert "No ZooKeeper" in console.get("/brokers").text
    finally:
        console.close()


def test_console_refuses_a_port_in_use_and_an_address_other_than_loopback(
    console: RunningConsole, cluster: LocalCluster
) -> None:
    def refused(*options: str) -> str:
        command = [sys.executable, "-P", "-m", "broker_lite", "console", *options]
        done = subprocess.run(
            [*command, "-b", cluster.bootstrap_servers], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1 and "Traceback" not in done.stderr
        return done.stderr

    port = console.address.rpartition(":")[2]
    assert f"port {port} of 127.0.0.1 is in use" in refused("--port", port)
    assert "is not loopback" in refused("--host", "0.0.0.0", "--port", "0")
