"""Tests of JSON log lines and of the table of log events."""

from __future__ import annotations

import ast
import io
import json
import logging
import logging.config
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker_lite
from broker_lite.model import TopicPartition
from broker_lite.server.json_log import JsonFormatter
from broker_lite.server.log_events import EVENTS, log_event

SOURCES = Path(str(broker_lite.__file__)).parent / "server"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Yield the output of a logger with the JSON formatter of broker 7."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    formatter = JsonFormatter()
    formatter.broker_id = 7
    handler.setFormatter(formatter)
    logger = logging.getLogger("tests.json")
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def test_json_log_line_is_one_object_with_an_event_a_topic_and_a_partition(
    lines: io.StringIO,
) -> None:
    extra = log_event("isr_changed", tp=TopicPartition("ev\nents", 3))
    logging.getLogger("tests.json").warning("%s: now %s", "ev\nents-3", [1, 2], extra=extra)
    (text,) = lines.getvalue().splitlines()
    line = json.loads(text)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "WARNING",
        "logger": "tests.json",
        "message": "ev\nents-3: now [1, 2]",
        "broker_id": 7,
        "event": "isr_changed",
        "topic": "ev\nents",
        "partition": 3,
    }


def test_stack_trace_stays_in_its_json_log_line(lines: io.StringIO) -> None:
    try:
        raise OSError("no disk")
    except OSError:
        logging.getLogger("tests.json").exception("append")
    (text,) = lines.getvalue().splitlines()
    assert json.loads(text)["exception"].endswith("OSError: no disk")


def test_undeclared_log_event_is_refused() -> None:
    with pytest.raises(KeyError):
        log_event("nothing_of_this_name")


def test_declared_log_events_are_those_that_the_code_logs() -> None:
    used = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "log_event":
                assert isinstance(node.args[0], ast.Constant)
                used.add(node.args[0].value)
    assert used == set(EVENTS)
    assert len(EVENTS) >= 40


def test_logging_conf_can_name_the_json_formatter(tmp_path: Path) -> None:
    file = tmp_path / "logging.conf"
    text = (SOURCES.parent / "conf" / "logging.conf").read_text("utf-8")
    chosen = "class=broker_lite.server.json_log.JsonFormatter"
    assert chosen in text
    changed = text.replace("[formatter_line]", f"[formatter_line]\n{chosen}")
    file.write_text(changed.replace("keys=root,kazoo", "keys=root"), "utf-8")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logging.config.fileConfig(file, disable_existing_loggers=False)
        assert isinstance(root.handlers[0].formatter, JsonFormatter)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
