"""EmbeddedZooKeeper: a real JVM, found, started, stopped; and each way in which it cannot."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from broker_lite.errors import MissingDependencyError, PortInUseError
from broker_lite.local import zookeeper
from broker_lite.local.class_archive import ClassArchive
from broker_lite.local.zookeeper import EmbeddedZooKeeper, find_jars, find_java, four_letters


def archives(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jsa*"))


def test_it_serves_keeps_its_port_and_an_archive_of_its_classes(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    try:
        host, _, port = server.start().partition(":")
        assert host == "127.0.0.1"
        assert "Mode: standalone" in four_letters(host, int(port), "srvr")
        assert server.start() == server.address
        server.kill()
        assert server.pid is None
        assert server.start() == f"{host}:{port}"
        assert not archives(tmp_path), "the JVM writes it when it ends"
        server.stop()
        (archive,) = archives(tmp_path)
        assert server.start() == f"{host}:{port}"
        command = Path(f"/proc/{server.pid}/cmdline")
        assert not command.exists() or f"={archive}".encode() in command.read_bytes()
        server.stop()
        archive.write_bytes(archive.read_bytes()[:4096])  # which would end the JVM
        assert server.start() == f"{host}:{port}"
    finally:
        server.stop()
    with pytest.raises(OSError):
        four_letters(host, int(port), "srvr")


def test_a_folder_whose_name_the_jvm_would_misread_keeps_no_archive(tmp_path: Path) -> None:
    for name, makes in (("plain", True), ("a:b", False)):
        folder = tmp_path / name
        archive = ClassArchive(folder, sys.executable, "jars")
        assert not archive.flags(may_make=False)
        assert bool(archive.flags(may_make=True)) is makes


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedZooKeeper(tmp_path, port=port)
        with pytest.raises(PortInUseError, match=str(port)):
            server.start()
        assert server.pid is None
        server.stop()


def test_a_free_port_is_tried_again_when_it_was_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offered = iter([taken.getsockname()[1], zookeeper.free_port()])
        monkeypatch.setattr(zookeeper, "free_port", lambda: next(offered))
        with EmbeddedZooKeeper(tmp_path) as server:
            assert server.port != taken.getsockname()[1]


def test_missing_java_names_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingDependencyError, match="Java 17"):
        find_java()


def test_java_home_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)


def test_missing_jars_name_the_cure(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="--zookeeper-jars"):
        find_jars(tmp_path)


def test_jars_are_found_in_spark_home_without_pyspark(
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
