"""Tests of how clients find a cluster: the order of the sources, and invalid addresses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_lite.client import discovery
from broker_lite.client.discovery import (
    data_directory,
    join,
    last_cluster_path,
    parse_endpoints,
    read_cluster,
    resolve,
)
from broker_lite.errors import InvalidConfigError, NoClusterError
from broker_lite.model import Endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a:1 , ", [("a", 1)]),
        ("a", [("a", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
        ("PLAINTEXT://h:7", [("h", 7)]),
    ],
)
def test_valid_bootstrap_addresses_are_parsed(text: str, expected: list[tuple[str, int]]) -> None:
    assert list(parse_endpoints(text)) == [Endpoint(*row) for row in expected]
    assert parse_endpoints(join(parse_endpoints(text))) == parse_endpoints(text)


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:70000", ":9092", "::1:9092", " , "])
def test_invalid_bootstrap_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"host:port|brackets|port from 1 to 65535"):
        parse_endpoints(text)


@pytest.mark.parametrize("given", [9092, [9092], ("a:1", 2), b"a:1"])
def test_bootstrap_address_that_is_no_text_is_refused(given: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"=.*: give host and port as text: '.+'$"):
        parse_endpoints(given)


def test_client_looks_for_a_cluster_address_in_the_documented_order_of_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def brokers(address: str) -> list[Endpoint]:
        asked.append(address)
        return [Endpoint("zk-found", 1)]

    monkeypatch.setattr(discovery, "brokers_in_zookeeper", brokers)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("LOGBUS_BOOTSTRAP_SERVERS", "LOGBUS_CLIENT_CONFIG", "LOGBUS_ZOOKEEPER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NoClusterError, match="logbus up"):
        resolve()
    path = last_cluster_path()
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"bootstrap_servers": "last:1", "zookeeper": "z"}))
    assert resolve() == "last:1"
    file = tmp_path / "client.conf"
    monkeypatch.setenv("LOGBUS_CLIENT_CONFIG", str(file))
    file.write_text("client.id=app\n")
    assert resolve() == "last:1"
    file.write_text("bootstrap.servers=file:1,file:2\n")
    assert resolve() == "file:1,file:2"
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "z:2181/logbus")
    assert resolve() == "zk-found:1"
    monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", "env:1")
    assert resolve() == "env:1"
    assert resolve(None, "z2:2181") == "zk-found:1"
    assert resolve(["given:1", "given:2"]) == "given:1,given:2"
    assert asked == ["z:2181/logbus", "z2:2181"]
    with pytest.raises(InvalidConfigError, match="both"):
        resolve("a:1", "z:1")


def test_invalid_or_missing_cluster_file_is_ignored(tmp_path: Path) -> None:
    assert read_cluster(tmp_path / "missing") is None
    broken = tmp_path / "broken"
    broken.write_text("{")
    assert read_cluster(broken) is None
    broken.write_text("[]")
    assert read_cluster(broken) is None


def test_default_data_directory_is_in_the_home_folder_without_xdg_data_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert data_directory() == Path.home() / ".local" / "share" / "logbus"
