"""Tests that generated deployment files agree with the code and with each other.

The files are for Docker, Compose, Kubernetes and systemd. The tests compare their ports, paths,
probes and stop times.
"""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker_lite import __version__
from broker_lite.cli.deployment import FOLDER
from broker_lite.cli.main import run
from broker_lite.config import BrokerConfig, parse
from broker_lite.config.listeners import listener_configs, metrics_listener
from broker_lite.metadata.zookeeper.connection import read_auth_file
from broker_lite.metadata.zookeeper.tls import tls_of
from broker_lite.model import Endpoint
from broker_lite.server import broker, http
from broker_lite.server.clock import Clock
from broker_lite.server.network.access import Authorizer, check_start
from broker_lite.server.network.tls_listener import ListenerTls

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[3]
STOP_S = broker.DRAIN_S + broker.FINISH_S + broker.DEREGISTER_S
"""The longest time of a stop without a hanging disk."""
START_S = 600
"""Seconds that a service manager gives a broker for its start."""
KUBERNETES_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
PROBES = set(re.findall(r'b"(/\w+)"', Path(str(http.__file__)).read_text("utf-8")))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["generate", *words]) == 0
    return capsys.readouterr().out


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.split() if "=" in line)


@pytest.mark.parametrize(
    ("words", "extra", "has_java"),
    [((), "broker", False), (("--all-in-one",), "all", True)],
    ids=["broker", "all in one"],
)
def test_docker_image_installs_the_wheel_of_this_version_and_runs_without_root(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], extra: str, has_java: bool
) -> None:
    text = printed(capsys, "docker", *words)
    wheel = f"pyspark_logbus-{__version__}-py3-none-any.whl"
    assert f"COPY {wheel} /tmp/" in text and f'"/tmp/{wheel}[{extra}]"' in text
    assert "@" not in text
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert extra in setup["options.extras_require"]
    user = re.search(r"--uid (\d+)", text)
    assert user is not None and f"\nUSER {user[1]}\n" in text and user[1] != "0"
    assert ("jre" in text) == has_java and "jdk" not in text


def test_compose_file_runs_three_brokers_of_the_image(capsys: pytest.CaptureFixture[str]) -> None:
    image = printed(capsys, "docker")
    compose: dict[str, Any] = yaml.safe_load(printed(capsys, "compose", "--insecure"))
    ports = re.search(r"^EXPOSE (.*)$", image, re.MULTILINE)
    volume = re.search(r"^VOLUME (.*)$", image, re.MULTILINE)
    command = re.search(r'^CMD \["--config", "(.*)"\]$', image, re.MULTILINE)
    assert ports and volume and command
    ids = set()
    for name, entry in compose["configs"].items():
        config = parse(BrokerConfig, settings(entry["content"]))
        service = compose["services"][name]
        assert config.advertised_host == name, "other services reach a service by its name"
        assert {str(config.port), str(config.metrics_port)} == set(ports[1].split())
        assert config.log_dir.startswith(volume[1])
        assert service["volumes"] == [f"{name}:{volume[1]}"]
        assert service["configs"] == [{"source": name, "target": command[1]}]
        assert int(service["stop_grace_period"].rstrip("s")) > STOP_S
        probe = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", service["healthcheck"]["test"][-1])
        assert probe and probe[1] == str(config.metrics_port) and probe[2] in PROBES
        zookeeper = config.zookeeper_connect.partition(":")[0]
        assert tls_of(config) is None
        assert zookeeper in compose["services"] and zookeeper in service["depends_on"]
        ids.add(config.broker_id)
    assert ids == {0, 1, 2}
    assert set(compose["volumes"]) >= set(compose["configs"])


def started_config(
    settings_map: Any, container: Any, host: str, folder: Path, secrets: Path = Path("/none")
) -> BrokerConfig:
    """Return the settings with which the container of a Kubernetes pod starts its broker."""
    (folder / "broker.conf").write_text(settings_map["data"]["broker.conf"], "utf-8")
    script = container["args"][0].replace(FOLDER, str(secrets))
    script = script.replace("/etc/logbus", str(folder))
    script = script.replace("/tmp/broker.conf", str(folder / "made.conf"))
    script = script.replace("/tmp/zookeeper.auth", str(folder / "zookeeper.auth"))
    script = script.replace("exec logbus broker --config", "exec test -s")
    subprocess.run(
        [*container["command"], script], check=True, env={"HOSTNAME": host, "PATH": "/usr/bin:/bin"}
    )
    text = (folder / "made.conf").read_text("utf-8").replace(FOLDER, str(secrets))
    return parse(BrokerConfig, settings(text))


def require_secured(config: BrokerConfig, host: str) -> None:
    """Assert that a broker's listeners, certificates and probe port are those of a secured
    cluster."""
    clients, brokers = listener_configs(config)
    assert (clients.protocol, brokers.requires_certificate) == ("SASL_SSL", True)
    assert clients.advertised == Endpoint(host, 9092) and clients.bind.port == 9092
    for listener in (clients, brokers):
        ListenerTls(listener, host, clock=Clock())
    assert config.authorizer == "enforce" and not config.listeners_insecure_allow
    assert metrics_listener(config) is not None and config.metrics_host == "0.0.0.0"
    Authorizer(config, brokers)
    check_start(config, brokers, Authorizer(config, brokers).index)
    assert read_auth_file(config.zookeeper_auth_file)
    assert tls_of(config) is None


@pytest.fixture
def certificates(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Create certificates with the commands in the comment at the top of a generated file."""
    folder = tmp_path / "security"
    for number in range(3):
        host = request.param.format(number)
        words = ["cert", "create", f"broker-{number}", "--host", host, "--dir", str(folder)]
        assert run(words) == 0
    (folder / "zookeeper.auth").write_text("brokers:secret\n")
    (folder / "zookeeper.auth").chmod(0o600)
    return folder


@pytest.mark.parametrize("certificates", ["broker-{}"], indirect=True)
def test_compose_file_runs_secured_brokers(
    capsys: pytest.CaptureFixture[str], certificates: Path
) -> None:
    text = printed(capsys, "compose")
    assert "--zookeeper-insecure" in text, "ZooKeeper has no TLS"
    compose: dict[str, Any] = yaml.safe_load(text)
    for name, entry in compose["configs"].items():
        # Compose would replace $NAME by a variable's value, so the file has $$ for each $.
        text = entry["content"].replace("$$", "$").replace(FOLDER, str(certificates))
        require_secured(parse(BrokerConfig, settings(text)), name)
        service = compose["services"][name]
        assert f"./security:{FOLDER}:ro" in service["volumes"]
        assert "https://127.0.0.1:9644/readyz" in service["healthcheck"]["test"][-1]


@pytest.mark.parametrize("certificates", ["logbus-{}.logbus"], indirect=True)
def test_kubernetes_pod_runs_a_secured_broker(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, certificates: Path
) -> None:
    text = printed(capsys, "kubernetes")
    assert "--zookeeper-insecure" in text, "ZooKeeper has no TLS"
    _, settings_map, _, stateful = yaml.safe_load_all(text)
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # Kubernetes mounts a secret's file readable for the pod's group.
    (certificates / "zookeeper.auth").chmod(0o640)
    config = started_config(settings_map, container, "logbus-1", tmp_path, certificates)
    require_secured(config, "logbus-1.logbus")
    for probe in KUBERNETES_PROBES:
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["security"] == FOLDER
    assert {volume["name"] for volume in pod["volumes"]} == {"config", "security"}


def test_kubernetes_pod_writes_settings_that_a_broker_accepts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = printed(capsys, "kubernetes", "--insecure")
    service, settings_map, budget, stateful = yaml.safe_load_all(text)
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    name = f"{stateful['metadata']['name']}-2"
    config = started_config(settings_map, container, name, tmp_path)
    assert config.broker_id == 2
    assert config.advertised_host == f"{name}.{service['metadata']['name']}"
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"clients": config.port, "metrics": config.metrics_port}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    for probe in KUBERNETES_PROBES:
        assert container[probe]["httpGet"]["path"] in PROBES
        assert container[probe]["httpGet"]["port"] in ports
    # /readyz fails during a long recovery, so the probes that restart the pod must not use it.
    start = container["startupProbe"]
    assert start["httpGet"]["path"] == container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert start["periodSeconds"] * start["failureThreshold"] == START_S
    assert config.metrics_host == "0.0.0.0", "probes do not come from the loopback"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert config.log_dir.startswith(mounts["data"])
    pod = stateful["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > STOP_S
    assert budget["spec"]["maxUnavailable"] == 1
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    for selector in (
        service["spec"]["selector"],
        budget["spec"]["selector"]["matchLabels"],
        stateful["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()


def test_systemd_unit_waits_for_the_broker_and_gives_it_time_to_stop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(printed(capsys, "systemd"))
    service = unit["Service"]
    assert service["TimeoutStartSec"] == f"{START_S // 60}min"
    assert service["Type"] == "notify"
    assert float(service["TimeoutStopSec"]) > STOP_S
    assert int(service["LimitNOFILE"]) >= 100_000
    # The broker writes only below its state directory; other folders are read-only.
    assert service["ProtectSystem"] == "strict" and service["StateDirectory"] == "logbus"
    assert "AF_UNIX" in service["RestrictAddressFamilies"], "Type=notify needs a Unix socket"
    assert "AF_INET6" in service["RestrictAddressFamilies"]
    assert re.fullmatch(
        r"\S+/bin/logbus broker --config /etc/logbus/broker.conf", service["ExecStart"]
    )
