"""Tests of the ``logbus`` command line as a whole: imports, exit codes and error messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from broker_lite.cli import main as root
from broker_lite.cli import output, user
from broker_lite.cli.main import COMMANDS, run
from broker_lite.client.operations import requests
from broker_lite.errors import (
    InvalidConfigError,
    NoBrokersError,
    RequestTimedOutError,
    SourceUnreachableError,
    UnknownTopicOrPartitionError,
)
from broker_lite.local import process


def test_help_imports_no_slow_module() -> None:
    code = (
        "import sys\n"
        "from broker_lite.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'pyarrow', 'numpy', 'kazoo', 'asyncio', 'pyspark', 'kafka', 'multiprocessing'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", ["topic", "groups", "consume", "produce"])
def test_shell_completion_imports_neither_settings_nor_client(name: str) -> None:
    """Importing settings and client takes 0.1 s, and a completion must answer within 0.3 s."""
    code = (
        "import sys\n"
        f"import broker_lite.cli.{name}\n"
        "heavy = {'client.administration.admin', 'config.broker', 'wire.calls.groups'}\n"
        "print(sorted(each for each in heavy if f'broker_lite.{each}' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo", "checkpoint"}))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert "Usage: logbus" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownTopicOrPartitionError("no topic"), 1),
        (NoBrokersError("none answers"), 3),
        (SourceUnreachableError("far"), 3),
        (RequestTimedOutError("late"), 124),
        (KeyboardInterrupt(), 130),
    ],
)
def test_type_of_an_error_determines_the_exit_code(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(root.cli, "main", fail)
    assert run(["status"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    if isinstance(error, Exception):
        assert str(error) in said.err
    assert ("logbus status" in said.err) == (type(error) is NoBrokersError)


def test_stdout_on_a_full_disk_gives_an_error_without_a_stack_trace() -> None:
    command = [sys.executable, "-P", "-m", "broker_lite", "config", "template", "broker"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: the output cannot be written: No space left on device. Free space there, or write "
        "the output elsewhere\n"
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_command_works_without_stdin_stdout_and_stderr(closed: str, tmp_path: Path) -> None:
    """Regression: with ``>&-`` commands ended with a traceback."""
    done = tmp_path / "done"
    script = f"{sys.executable} -m broker_lite context list {closed}; echo $? > {done}"
    subprocess.run(["sh", "-c", script], env=os.environ | {"HOME": str(tmp_path)}, check=True)
    assert done.read_text() == "0\n"


def test_usage_error_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nosuch"]) == 2
    assert run(["produce"]) == 2
    assert run(["topc", "list"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no command 'nosuch'\n" in said.err
    assert "no command 'topc'; did you mean 'topic'?" in said.err


@pytest.mark.parametrize(
    ("words", "name", "code"),
    [
        (["topic", "list", "--nope", "-o", "json"], "USAGE", 2),
        (["lag", "-o", "jsonl", "--at", "x", "y"], "USAGE", 2),
        (["export", "t", "t.xls", "-o", "json"], "USAGE", 2),
    ],
)
def test_usage_error_is_printed_as_json_if_the_output_format_is_json(
    words: list[str], name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err) | {"message": ""} == {
        "error": name, "message": "", "exit_code": code,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("start", "up"), ("stop", "down"), ("help", "--help"), ("version", "--version")],
)
def test_command_name_of_another_tool_suggests_the_logbus_command(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([typed]) == 2
    assert f"no command {typed!r}; did you mean {meant!r}?" in capsys.readouterr().err


def test_text_in_place_of_a_number_gives_a_short_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--port", "22x"]) == 2
    assert "'--port': '22x' is not a valid number.\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["consume", "t", "--nope"], None),
        (["produce", "t", "--detach"], None),
        (["up", "--detatch"], "--detach"),
        (["consume", "t", "--form", "json"], "--format"),
        (["topic", "--regx", "a"], "--regex"),
        (["quota", "list", "--address", "::1"], "--bootstrap-servers"),
        (["quota", "set", "producer_byte_rate", "1", "--address", "::1"], "--ip"),
        (["console", "--address", "::1"], "--host"),
        (["consume", "t", "--from-beginning"], "--start"),
        (["consume", "t", "--max-messages", "1"], "--count"),
        (["topic", "list", "--json"], "--output"),
    ],
)
def test_unknown_option_suggests_options_with_similar_words(
    typed: list[str], offered: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """No option is suggested for ``--nope``, which resembles ``--group`` only in its dashes and
    an o."""
    assert run(typed) == 2
    said = capsys.readouterr().err
    assert ("Did you mean" in said or "did you mean" in said) == (offered is not None)
    assert offered is None or said.rstrip().endswith(f"{offered!r}?")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["--context", "prod", "topic", "list"], "after it: logbus topic … --context"),
        (["-b", "127.0.0.1:1", "consume", "t"], "after it: logbus consume … -b"),
        (["topic", "alter", "t", "a=1", "b=2"], "with its option: -c a=1 -c b=2"),
        (["export", "t", "-o", "t.csv"], "leave -o out: logbus export TOPIC t.csv"),
        (["quota", "set", "producer_byte_rate", "1"], "give --user, --client-id or --ip"),
        (["quota", "delete", "producer_byte_rate"], "give --user, --client-id or --ip"),
    ],
)
def test_usage_error_shows_how_to_type_what_the_user_meant(
    typed: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == 2
    assert hint in capsys.readouterr().err


def test_word_with_an_equals_sign_beside_another_word_is_no_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["topic", "alter", "t", "a=1", "u"]) == 2
    assert "-c a=1" not in capsys.readouterr().err


@pytest.mark.parametrize("noun", ["groups", "topic"])
def test_command_group_without_a_subcommand_runs_its_list_command(
    noun: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([noun, "-b", "no:port"]) == run([noun, "list", "-b", "no:port"]) == 1
    assert run([noun, "-h"]) == 0
    assert "Without a command, 'list' runs." in capsys.readouterr().out
    assert run([noun, "lst"]) == 2
    assert "Did you mean 'list'" in capsys.readouterr().err


def test_missing_cluster_error_says_how_to_name_or_start_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for command in (
        ["topic", "list"],
        ["topic"],
        ["groups"],
        ["consume", "t"],
        ["status"],
        ["down"],
    ):
        assert run(command) == 3
        assert "logbus up" in capsys.readouterr().err


def test_commands_report_an_unwritable_home_folder_if_no_cluster_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: while a cluster ran with ``--dir``, ``status`` and ``down`` found none and
    offered to start one."""
    (tmp_path / "home").write_text("a file in the way")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    for command in ("status", "down"):
        assert run([command]) == 3
        said = capsys.readouterr().err
        assert f"{tmp_path}/home/logbus cannot be written" in said and "--dir" in said


def test_command_without_file_permission_prints_an_error_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    assert run(["storage", "verify", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"Error: {tmp_path}: permission denied" in said and "Traceback" not in said


@pytest.mark.parametrize(
    "command", ["storage verify", "storage inspect", "status --dir", "down --dir"]
)
def test_unreadable_folder_of_another_user_gives_permission_denied(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    closed, stat = tmp_path / "closed", os.stat

    def denied(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(str(closed)):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", denied)
    assert run([*command.split(), str(closed)]) == 1
    assert "permission denied" in capsys.readouterr().err


def test_error_of_command_down_for_another_users_cluster_names_the_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"directory": str(tmp_path), "pid": os.getpid(), "processes": {}}
    (tmp_path / "cluster.json").write_text(json.dumps(facts))

    def denied(*signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(process, "is_running", lambda pid, mark: True)
    monkeypatch.setattr(os, "kill", denied)
    assert run(["down", "--dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"Error: the cluster in {tmp_path}: permission denied" in said
    assert (tmp_path / "cluster.json").exists()


def test_help_of_consume_says_that_option_start_replaces_committed_offsets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(["consume", "-h"])
    assert "replaces the group's committed offsets" in " ".join(capsys.readouterr().out.split())


def test_user_add_without_a_broker_does_not_ask_for_a_zookeeper_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "FIRST_CONTACT_MS", 100)
    file = tmp_path / "password"
    file.write_text("secret\n", "utf-8")
    assert run(["user", "add", "alice", "--password-file", str(file), "-b", "127.0.0.1:1"]) == 3
    assert "--zookeeper-ca" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "no_color", "expected"),
    [
        ("auto", "", None),
        ("auto", "1", False),
        ("always", "1", True),
        ("never", "", False),
    ],
)
def test_option_color_overrides_the_variable_no_color(
    option: str, no_color: str, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    context = click.Context(root.cli)
    assert root.cli.callback is not None
    context.invoke(root.cli.callback, debug=False, color=option)
    assert context.color is expected


def test_states_such_as_ok_and_critical_are_coloured_in_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"check": "java", "state": "ok"}, {"check": "disk", "state": "critical"}]
    with click.Context(root.cli) as context:
        context.color = True
        output.show(rows, "table")
        context.color = None
        output.show(rows, "table")
    assert capsys.readouterr().out == (
        "CHECK  STATE\njava   \x1b[32mok\x1b[0m\ndisk   \x1b[31mcritical\x1b[0m\n"
        "CHECK  STATE\njava   ok\ndisk   critical\n"
    )


@pytest.mark.parametrize("number", ["-5", "-5.5"])
def test_error_for_a_negative_number_says_that_a_number_must_be_positive(
    capsys: pytest.CaptureFixture[str], number: str
) -> None:
    """Regression: click parsed ``-5`` as an option, and the error said only that there is no
    such option."""
    assert run(["quota", "set", "producer_byte_rate", number, "--user", "a"]) == 2
    assert f"{number} is no option; a number must be positive here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("lag", "--watch", "--interval", "-1"),
        ("lag", "--crit-s", "nan"),
        ("consume", "t", "--timeout", "nan"),
        ("health", "--wait", "--timeout", "nan"),
        ("user", "rotate", "alice", "--keep-old", "nan"),
        ("quota", "set", "producer_byte_rate", "nan", "--user", "a"),
        ("perf", "produce", "--size", "-1"),
        ("topic", "create", "t", "-p", "99999999999"),
        ("topic", "create", "t", "-r", "99999"),
        ("topic", "alter", "t", "-p", "99999999999"),
        ("perf", "consume", "-n", "0"),
        ("perf", "latency", "-n", "0"),
    ],
    ids=" ".join,
)
def test_nan_or_out_of_range_number_is_a_usage_error(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a command printed a traceback for such a number, or its check never failed
    (--crit-s nan)."""
    assert run([*words, "-b", "127.0.0.1:1"]) == 2
    assert "Invalid value for" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("config", "describe", "--file", "latin1.conf"),
        ("broker", "--config", "latin1.conf"),
        ("broker", "--config", "empty.conf", "--logging", "latin1.conf"),
        ("broker", "--config", "empty.conf", "--logging", "empty.conf"),
    ],
    ids=" ".join,
)
def test_error_for_an_unusable_settings_file_names_the_file(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Regression: the command printed a traceback for a file that is not UTF-8, and for an
    invalid logging file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin1.conf").write_bytes("rack=Käse\n".encode("latin-1"))
    (tmp_path / "empty.conf").touch()
    assert run(list(words)) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: [LOGBUS_INVALID_CONFIG]") and words[-1] in error


def test_password_of_user_add_is_the_first_line_of_a_utf8_file(tmp_path: Path) -> None:
    """Regression: other separators than a newline, such as U+2028, ended the password; a file that
    is not UTF-8 gave a traceback."""
    file = tmp_path / "password"
    file.write_bytes("a\u2028b\r\nnext".encode())
    assert user._password("alice", file) == "a\u2028b"
    file.write_bytes(b"k\xe4se")
    with pytest.raises(InvalidConfigError, match="is not UTF-8 text"):
        user._password("alice", file)


def test_user_add_without_input_names_the_option_for_a_password_file() -> None:
    """Regression: the command ended with code 130, as after Ctrl-C, and without an error."""
    with (
        CliRunner().isolation(input=""),
        pytest.raises(InvalidConfigError, match="--password-file"),
    ):
        user._password("alice", None)


def test_topic_alter_that_sets_and_resets_the_same_setting_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Regression: the command ignored the value and reset the setting."""
    words = ("topic", "alter", "t", "-c", "retention.ms=5", "--reset", "retention.ms")
    assert run([*words, "-b", "127.0.0.1:1"]) == 2
    assert "both name retention.ms" in capsys.readouterr().err


def test_csv_without_rows_has_no_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.show([], "csv")
    assert capsys.readouterr().out == ""


def test_acl_check_refuses_a_host_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: ACLs of addresses matched no host name, so a denied client seemed allowed."""
    words = ("acl", "check", "alice", "read", "--topic", "t", "--host", "k1.example")
    assert run([*words, "-b", "127.0.0.1:1"]) == 1
    assert "host 'k1.example' is not an IP address" in capsys.readouterr().err


def test_table_escapes_control_characters_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: the name of a group could clear the terminal, or begin a line of its own."""
    output.show([{"group": "a\x1b[2J\nb", "lag": 1}], "table")
    output.show_one({"group": "a\x1b[2J\nb"}, "table")
    assert capsys.readouterr().out.splitlines() == [
        "GROUP        LAG",
        r"a\x1b[2J\nb    1",
        r"group  a\x1b[2J\nb",
    ]
