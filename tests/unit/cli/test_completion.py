"""Tests of shell completion: it prints no errors and waits only shortly for a broker."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker_lite.cli import completion
from broker_lite.cli.main import run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    for name in ("CONTEXT", "BOOTSTRAP_SERVERS", "ZOOKEEPER"):
        monkeypatch.delenv(f"LOGBUS_{name}", raising=False)


def completed(typed: str, shell: str = "bash") -> list[str]:
    """Return the completions that a shell gets for a command line with an incomplete last word."""
    variables = {
        "_LOGBUS_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "broker_lite"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_commands_and_options_are_completed() -> None:
    assert "plain,topic" in completed("logbus top")
    assert "plain,--partitions" in completed("logbus topic create --part")
    assert "plain,topic" in completed("logbus nonsense t")  # The command prints no error.
    zsh = completed("logbus heal", "zsh")
    assert zsh[:2] == ["plain", "health"]


def test_shell_completion_caches_names_and_offers_none_if_the_cluster_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def ask(kind: str, params: object) -> list[str]:
        asked.append(kind)
        return ["events", "errors"]

    monkeypatch.setattr(completion, "ANSWER_SECONDS", 30.0)
    monkeypatch.setattr(completion, "_ask", ask)
    params = {"bootstrap_servers": "127.0.0.1:1"}
    assert completion.names("topic", params) == ["events", "errors"]
    assert completion.names("topic", params) == ["events", "errors"]
    assert asked == ["topic"]
    assert completed("logbus topic describe -b 127.0.0.1:1 ev") == ["plain,events"]
    assert "".join(completed("logbus topic describe -b 127.0.0.1:2 ev")) == ""


def test_names_of_contexts_are_completed_from_the_contexts_file() -> None:
    for name in ("prod", "probe", "dev"):
        assert run(["context", "create", name, "-b", "127.0.0.1:1"]) == 0
    assert completed("logbus context use pro") == ["plain,probe", "plain,prod"]
    assert completed("logbus topic list --context d") == ["plain,dev"]


def test_completion_does_not_wait_for_a_silent_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker never answers, so a blocking completion would hit the test's time-out."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        params = {"bootstrap_servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        assert completion.names("group", params) == []


def test_completion_connects_to_the_cluster_that_the_client_config_file_names(
    tmp_path: Path,
) -> None:
    """Regression: completion connected to the cluster of ``logbus up``, with the login from the
    file that ``-F`` names."""
    file = tmp_path / "client.conf"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10.0)
        file.write_text(f"bootstrap.servers=127.0.0.1:{server.getsockname()[1]}\n")
        assert completion.names("topic", {"client_config": str(file)}) == []
        server.accept()[0].close()


def test_completion_does_not_run_the_password_command_of_a_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    login = ("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.username=ann")
    command = ("--password-command", f"touch {ran}")
    assert run(["context", "create", "c", "-b", "127.0.0.1:1", *login, *command]) == 0
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 30.0)
    assert completion.names("topic", {"context_name": "c"}) == []
    assert not ran.exists()


IN_SHELL = {
    "bash": "source ./script; COMP_WORDS=(logbus topi) COMP_CWORD=1; _logbus_completion logbus; "
    'echo "${COMPREPLY[@]}"',
    # Stand for the functions of zsh's completion system, which needs a terminal.
    "zsh": "compdef() { }; _describe() { print -l -- ${(P)3} }; source ./script; "
    "words=(logbus topi) CURRENT=2; _logbus_completion",
    "fish": "source ./script; complete -C 'logbus topi'",
}
"""Programs of each shell that complete "logbus topi" with the printed script."""


@pytest.mark.parametrize("shell", IN_SHELL)
def test_printed_script_completes_a_command_in_its_shell(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_LOGBUS_COMPLETE={shell}_complete" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    (tmp_path / "script").write_text(script)
    program = tmp_path / "logbus"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m broker_lite "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        [shell, "-c", IN_SHELL[shell]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("topic") and done.stderr == ""
