"""Tests of ``logbus config``, of errors printed as JSON, and of the exit codes in the help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_lite.cli.config_commands import TEMPLATES, _rows
from broker_lite.cli.main import EXIT_CODES, run
from broker_lite.client.administration.admin import ConfigEntry
from broker_lite.config import BrokerConfig, keys

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize("name", TEMPLATES)
def test_config_template_equals_the_file_in_conf(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "template", name]) == 0
    assert capsys.readouterr().out == (CONF / TEMPLATES[name]).read_text("utf-8")
    assert {path.name for path in CONF.iterdir()} == set(TEMPLATES.values())


def test_config_describe_of_a_file_shows_value_default_and_source_of_each_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# log.dir=5\nlog.dir = d7\nbroker.id=1\n")
    describe = ["config", "describe", "--file", str(path), "-o", "json"]
    assert run(describe) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {row.key for row in keys(BrokerConfig).values()}
    assert (rows["log.dir"]["value"], rows["log.dir"]["source"]) == (
        "d7",
        str(path),
    )
    assert rows["log.dir"]["default"] != "d7"
    assert rows["host"]["source"] == "default"
    assert run([*describe, "--changed"]) == 0
    assert "log.dir" in {row["setting"] for row in json.loads(capsys.readouterr().out)}
    assert run(["config", "describe"]) == 2


def test_config_describe_changed_omits_a_setting_that_the_broker_reports_as_a_default() -> None:
    """Regression: --changed listed throttle rates that the broker reported as its defaults."""
    name = "leader.replication.throttled.rate"
    entry = ConfigEntry(name, "9", True, False, "default", "")
    (row,) = _rows({name: entry}, {})
    assert (row["value"], row["default"]) == ("9", "9")


@pytest.mark.parametrize("option", [["-o", "json"], ["-ojson"], ["--output=jsonl"]])
def test_error_is_printed_as_json_if_the_output_format_is_json(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["topic", "list", "-b", "127.0.0.1:x", *option])
    said = json.loads(capsys.readouterr().err)
    assert said["exit_code"] == code == 1
    assert said["error"] == "INVALID_CONFIG" and "host:port" in said["message"]


def test_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for code, meaning in EXIT_CODES.items():
        assert f"  {code} " in text and meaning in text


def test_command_logbus_group_is_an_alias_of_logbus_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["group", "--help"]) == 0
    assert "reset-offsets" in capsys.readouterr().out
