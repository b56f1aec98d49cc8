"""Tests of EmbeddedZooKeeper, which runs a real JVM: start, stop, class archive and start errors.

The class archive is a file of the JVM that makes later starts faster.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.patience import until

from broker_lite.errors import MissingDependencyError, PortInUseError
from broker_lite.local import zookeeper
from broker_lite.local.class_archive import ClassArchive
from broker_lite.local.zookeeper import EmbeddedZooKeeper, find_jars, find_java, four_letters


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder. Return the path of its folder for class archives, which does not
    exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "logbus" / "classes"


@pytest.mark.real
def test_embedded_zookeeper_restarts_on_its_port_with_a_jvm_class_archive(
    tmp_path: Path, cache: Path
) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    try:
        host, _, port = server.start().partition(":")
        assert host == "127.0.0.1"
        assert "Mode: standalone" in four_letters(host, int(port), "srvr")
        assert server.start() == server.address
        server.kill()
        assert server.pid is None
        assert server.start() == f"{host}:{port}"
        assert not [*cache.iterdir()], "a killed JVM wrote a class archive"
        server.stop()
        (archive,) = cache.iterdir()
        assert server.start() == f"{host}:{port}"
        command = Path(f"/proc/{server.pid}/cmdline")
        assert not command.exists() or f"={archive}".encode() in command.read_bytes()
        server.stop()
        archive.write_bytes(archive.read_bytes()[:4096])  # A JVM crashes on a truncated archive.
        assert server.start(wait=False) == f"{host}:{port}"
        assert server.is_starting
        until(server.has_started)
        assert not server.is_starting and "Mode:" in four_letters(host, int(port), "srvr")
    finally:
        server.stop()
    with pytest.raises(OSError):
        four_letters(host, int(port), "srvr")


@pytest.mark.real
def test_zookeeper_keeps_its_data_in_a_folder_whose_name_is_not_ascii(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a user with such a home folder could not start a cluster. ZooKeeper wrote its
    data into another folder, whose name was the UTF-8 bytes decoded as Latin-1."""
    monkeypatch.setenv("LC_ALL", "C")
    folder = tmp_path / "J\u00fcrgen \u20ac #=\\"
    with EmbeddedZooKeeper(folder):
        assert (folder / "data" / "version-2").is_dir()
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.real
def test_zookeeper_heap_can_hold_the_last_500_writes_that_zookeeper_keeps_in_memory(
    tmp_path: Path,
) -> None:
    """Regression: restarting a broker with 10,000 partitions made ZooKeeper run out of memory.

    ZooKeeper keeps its last 500 writes in memory. Its process stayed up, but answered no request.
    """
    with EmbeddedZooKeeper(tmp_path) as server:
        client = KazooClient(server.address)
        client.start()
        client.create("/state")
        for _ in range(500):
            client.set("/state", bytes(400_000))
        assert client.get("/state")[1].version == 500
        client.stop()
        client.close()


def test_jvm_class_archive_is_written_only_to_a_private_writable_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    for folder, makes in (
        (tmp_path / "plain", True),
        (tmp_path / "a:b", False),
        (tmp_path / "open", False),
        (tmp_path / "file" / "below", False),
        (Path("relative"), False),
    ):
        archive = ClassArchive(folder, sys.executable, "jars")
        assert bool(archive.flags()) is makes, folder


def test_only_the_newest_three_jvm_class_archives_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        archive = ClassArchive(tmp_path, sys.executable, f"jars {number}")
        _, flag = archive.flags()
        Path(flag.partition("=")[2]).write_bytes(b"classes")
        archive.take()
        assert "SharedArchiveFile" in archive.flags()[1]
    assert len([*tmp_path.iterdir()]) == 3


@pytest.mark.real
def test_zookeeper_start_error_names_the_port_that_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedZooKeeper(tmp_path, port=port)
        with pytest.raises(PortInUseError, match=str(port)):
            server.start()
        assert server.pid is None
        server.stop()


@pytest.mark.real
def test_zookeeper_starts_on_another_port_if_another_process_took_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offered = iter([taken.getsockname()[1], zookeeper.free_port()])
        monkeypatch.setattr(zookeeper, "free_port", lambda: next(offered))
        with EmbeddedZooKeeper(tmp_path) as server:
            assert server.port != taken.getsockname()[1]


def test_missing_java_error_names_the_required_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingDependencyError, match="Java 17"):
        find_java()


def test_java_home_takes_precedence_over_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)


def test_missing_zookeeper_jars_error_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="--zookeeper-jars"):
        find_jars(tmp_path)


def test_zookeeper_jars_are_found_in_spark_home_if_pyspark_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zookeeper.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="were not found"):
        find_jars()
    (tmp_path / "jars").mkdir()
    for jar in zookeeper._JARS:
        (tmp_path / "jars" / jar.replace("[0-9]*", "3.9.5").replace("*", "1.0")).touch()
    assert find_jars() == tmp_path / "jars"
