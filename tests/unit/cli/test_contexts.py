"""Tests of contexts: named clusters in the file ``contexts.toml``, of which commands use one."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from broker_lite.bus import aconnect, connect
from broker_lite.cli import contexts
from broker_lite.cli.context import cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.main import run
from broker_lite.client import discovery
from broker_lite.client.client_config import chosen_security, security_of_environment
from broker_lite.client.discovery import security_for
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import InvalidConfigError, NoClusterError
from pyspark_logbus import datasource

LOGIN = (
    *("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=SCRAM-SHA-256"),
    *("-X", "sasl.username=ann"),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONTEXT", "BOOTSTRAP_SERVERS", "ZOOKEEPER", "CLIENT_CONFIG"):
        monkeypatch.delenv(f"LOGBUS_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert run(["context", "create", "prod", "-b", "h1,h2:93", "--read-only"]) == 0
    assert run(["context", "create", "dev", "--zookeeper", "z:2181/logbus"]) == 0
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    capsys.readouterr()
    assert run(["context", "list", "-o", "json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_contexts_are_stored_with_their_addresses_in_a_private_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert contexts.path().stat().st_mode & 0o777 == 0o600
    found = listed(capsys)
    assert found["prod"]["bootstrap_servers"] == "h1:9092,h2:93"
    assert found["prod"]["read_only"] and not found["prod"]["selected"]
    assert found["dev"]["zookeeper"] == "z:2181/logbus" and not found["dev"]["read_only"]


def test_command_context_use_selects_the_named_the_previous_or_no_context(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def selected() -> list[str]:
        return [name for name, row in listed(capsys).items() if row["selected"]]

    assert run(["context", "use", "-"]) == 1
    assert run(["context", "use", "prod"]) == run(["context", "use", "dev"]) == 0
    assert selected() == ["dev"]
    assert run(["context", "use", "-"]) == 0
    assert selected() == ["prod"]
    assert run(["context", "use", "--none"]) == 0
    assert selected() == []
    assert run(["context", "use", "prod"]) == run(["context", "delete", "prod"]) == 0
    assert list(listed(capsys)) == ["dev"] and selected() == []
    assert run(["context", "delete", "prod", "--if-exists"]) == 0
    assert run(["context", "create", "dev", "-b", "h"]) == 1
    assert run(["context", "create", "dev", "-b", "h", "--if-not-exists"]) == 0
    assert listed(capsys)["dev"]["bootstrap_servers"] is None


def test_command_chooses_its_cluster_from_the_sources_in_documented_order(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the selected context overrode LOGBUS_CLIENT_CONFIG, which Python and Spark
    use."""

    def name(option: str | None = None, *, is_named: bool = False) -> str | None:
        found = contexts.choose(option, is_named)
        return found and found.name

    assert name() is None
    assert run(["context", "use", "prod"]) == 0
    file = home / "client.conf"
    file.write_text("client.id=app\n")
    monkeypatch.setenv("LOGBUS_CLIENT_CONFIG", str(file))
    assert name() == "prod", "the file names no cluster"
    file.write_text("bootstrap.servers=file:1\n")
    assert name() is None
    monkeypatch.delenv("LOGBUS_CLIENT_CONFIG")
    assert name() == "prod"
    monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", "h:1")
    assert name() is None
    monkeypatch.setenv("LOGBUS_CONTEXT", "dev")
    assert name() == "dev"
    assert name("prod") == "prod"
    assert name(is_named=True) is None


def test_bootstrap_servers_of_a_client_config_file_override_the_selected_context(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a command with ``-F`` wrote to the cluster of ``logbus up`` instead."""

    @click.command()
    @cluster_options
    def command(cluster: ChosenCluster) -> None:
        click.echo(f"{cluster.bootstrap_servers} {cluster.zookeeper}")

    def named(*given: str) -> str:
        command.main(given, standalone_mode=False)
        return capsys.readouterr().out.strip()

    file = home / "client.conf"
    file.write_text("bootstrap.servers=file:1\n")
    assert run(["context", "use", "dev"]) == 0
    capsys.readouterr()
    assert named() == "None z:2181/logbus"
    assert named("-F", str(file)) == "file:1 None"
    assert named("-F", str(file), "-b", "given:1") == "given:1 None"
    assert named("-F", str(file), "--context", "dev") == "None z:2181/logbus"
    file.write_text("client.id=app\n")
    assert named("-F", str(file)) == "None z:2181/logbus"


def test_option_dir_of_command_status_overrides_contexts(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: with a selected context, ``status --dir`` was refused as a wrong use."""
    file = home / "client.conf"
    file.write_text("bootstrap.servers=file:1\n")
    assert run(["context", "use", "prod"]) == 0
    for given in ([], ["-F", str(file)]):
        capsys.readouterr()
        assert run(["status", "--dir", str(home), *given]) == 3
        assert "no cluster runs in" in capsys.readouterr().err
    for given in (["-b", "h:1"], ["--context", "dev"], ["--zookeeper", "z:1"]):
        assert run(["status", "--dir", str(home), *given]) == 2
        assert "--dir names a cluster of this machine" in capsys.readouterr().err
    monkeypatch.setenv("LOGBUS_CONTEXT", "unknown")
    assert run(["status", "--dir", str(home)]) == 3


def test_python_and_spark_clients_ignore_the_selected_context(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark driver chooses the cluster when it creates the data source, without a Spark session;
    executors get its address from the driver."""
    assert run(["context", "use", "prod"]) == 0
    chosen = contexts.choose(None, False)
    assert chosen is not None and chosen.name == "prod", "a command uses the selected context"
    monkeypatch.setattr(datasource, "_resolved", {})
    clients: list[Callable[[], object]] = [
        connect,
        lambda: asyncio.run(aconnect()),
        lambda: datasource.DefaultSource({"subscribe": "t"}),
        lambda: datasource.DefaultSource({"topic": "t"}),
    ]
    for client in clients:
        with pytest.raises(NoClusterError):
            client()
    last_up = json.dumps({"bootstrap_servers": "last:1"})
    (home / "logbus" / discovery.LAST_CLUSTER).write_text(last_up, "utf-8")
    assert datasource.DefaultSource({"subscribe": "t"})._bootstrap == "last:1"


def test_context_delete_with_dry_run_keeps_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["context", "create", "kept", "-b", "k1:9092"]) == 0
    assert run(["context", "delete", "kept", "--dry-run"]) == 0
    assert "nothing was changed" in capsys.readouterr().err
    assert run(["context", "use", "kept"]) == 0


def test_error_for_an_unknown_context_suggests_the_nearest_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["topic", "list", "--context", "prd"]) == 2
    assert "no context 'prd'; did you mean 'prod'?" in capsys.readouterr().err
    assert run(["topic", "list", "--context", "prod", "-b", "h:1"]) == 2


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "create", "t"],
        ["topic", "delete", "t", "--yes"],
        ["produce", "t"],
        ["consume", "t", "-g", "g"],
        ["groups", "seek", "g", "t", "--to", "latest", "--yes"],
        ["broker", "retire", "1"],
    ],
    ids=" ".join,
)
def test_read_only_context_refuses_changes_before_connecting(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert run([*command, "--context", "prod"]) == 1
    assert "LOGBUS_READ_ONLY_CONTEXT" in capsys.readouterr().err


def test_context_file_contains_no_password(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ["context", "create", "x", "-b", "h", *LOGIN]
    assert run([*create, "-X", "sasl.password=secret"]) == 1
    assert "--password-file" in capsys.readouterr().err
    assert run([*create, "-X", "sasl.user=ann"]) == 1
    (home / "password").write_text("from a file\nnot this\n")
    assert run([*create, "--password-file", str(home / "password")]) == 0
    print_it = shlex.join([sys.executable, "-c", "print('from a command')"])
    assert run(["context", "create", "y", "-b", "h", *LOGIN, "--password-command", print_it]) == 0
    found = contexts.load(contexts.path()).by_name
    for name, password in (("x", "from a file"), ("y", "from a command")):
        security = found[name].security()
        assert security.username == "ann" and security.demands_login
        assert security.secret == Secret(password)
    fails = shlex.join([sys.executable, "-c", "print('sec' + 'ret'); exit(3)"])
    assert run(["context", "create", "z", "-b", "h", *LOGIN, "--password-command", fails]) == 0
    with pytest.raises(InvalidConfigError, match="ended with code 3") as error:
        contexts.load(contexts.path()).by_name["z"].security()
    assert "secret" not in str(error.value)
    monkeypatch.setattr(contexts, "COMMAND_SECONDS", 0.01)
    for command, reason in (("sleep 9", "more than 0.01 s"), ("no-such-command", "cannot be run")):
        slow = contexts.Context("w", "h", password_command=command, settings={"sasl.username": "a"})
        with pytest.raises(InvalidConfigError, match=f"{reason}.*Run it by itself to see why"):
            slow.security()


def test_command_context_describe_shows_the_settings_of_a_context(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(home / "password")
    assert run(["context", "create", "x", "-b", "h", *LOGIN, "--password-file", file]) == 0
    capsys.readouterr()
    assert run(["context", "describe", "x", "-o", "json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["bootstrap_servers"], row["password_file"], row["user"]) == ("h:9092", file, "ann")
    assert row["settings"]["sasl.mechanism"] == "SCRAM-SHA-256"
    assert run(["context", "describe", "y"]) == 2


def test_security_settings_of_a_context_apply_only_inside_a_with_block() -> None:
    before = security_of_environment()
    with chosen_security(ClientSecurity(protocol="SSL")):
        assert security_of_environment().is_tls
        assert security_for("h:1").is_tls
    assert security_of_environment() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("selected = prod", 'at line 1, column 12). Write the line as KEY = "text"'),
        ('[contexts.a]\nbootstrap_server = "h"', "contexts.a.bootstrap_server; did you mean"),
        (
            "[contexts.a]\nx = 1",
            "unknown key contexts.a.x; use one of: bootstrap_servers, zookeeper",
        ),
        ('[contexts.a]\nbootstrap_servers = "h"\nread_only = "yes"', "contexts.a.read_only"),
        ("[contexts.a]\n", "contexts.a: give bootstrap_servers or zookeeper"),
        ('selected = "b"', "selected = 'b': there is no such context"),
        ("color = 1", "unknown key 'color'"),
        ("selected = 1", "selected = 1 has the wrong type; give text"),
    ],
)
def test_error_for_an_invalid_contexts_file_names_the_file_and_the_line_or_key(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts.path().write_text(text)
    assert run(["context", "list"]) == 1
    error = capsys.readouterr().err
    assert said in error and str(contexts.path()) in error


def _make_folder_of_file() -> None:
    contexts.path().unlink()
    contexts.path().mkdir()


def _make_file_of_folder() -> None:
    contexts.path().unlink()
    contexts.path().parent.rmdir()
    contexts.path().parent.write_text("")


@pytest.mark.parametrize(
    ("spoil", "words", "said"),
    [
        (_make_folder_of_file, "list", "Move the folder of that name away: mv {file} {file}.old"),
        (_make_file_of_folder, "create c -b h", "Move away the file that is in place of a folder"),
        (lambda: contexts.path().write_bytes(b"\xff"), "list", "it is not UTF-8. Save it as UTF-8"),
    ],
)
def test_error_for_an_unusable_contexts_file_names_the_file_and_the_remedy(
    spoil: Callable[[], object], words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: the error messages ended in "Correct that" and did not say how."""
    spoil()
    assert run(["context", *words.split()]) == 1
    error = capsys.readouterr().err
    assert said.format(file=contexts.path()) in error and "XDG_CONFIG_HOME" in error


def test_error_for_a_missing_password_file_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    missing = tmp_path / "password"
    context = contexts.Context("c", password_file=str(missing), settings={"a": "b"})
    with pytest.raises(InvalidConfigError, match="No such file") as refused:
        context.security()
    assert str(missing) in refused.value.message
    assert refused.value.message.endswith("Create it, or correct its line in contexts.toml")


def test_contexts_file_that_other_users_may_write_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    contexts.path().chmod(0o660)
    assert run(["context", "list"]) == 1
    assert f"chmod 600 {contexts.path()}" in capsys.readouterr().err


def test_commands_in_messages_quote_the_name_of_a_context(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Regression: a name with a space, typed as shown, was two arguments."""
    assert run(["context", "create", "my prod", "-b", "h1"]) == 0
    assert "logbus context use 'my prod'" in capsys.readouterr().err
