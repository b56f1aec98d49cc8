"""Check that conf/ documents exactly the settings of the code, with default values and units."""

from __future__ import annotations

import configparser
import logging.config
import re
from pathlib import Path
from typing import Any

import pytest

from broker_lite.client.membership.settings import MemberConfig
from broker_lite.config import (
    BrokerConfig,
    ConsumerConfig,
    ProducerConfig,
    TopicConfig,
    keys,
    load,
    value_text,
)
from broker_lite.local.zookeeper import EmbeddedZooKeeper

CONF = Path(__file__).parent.parent / "conf"
_SETTING = re.compile(r"#([a-z0-9.]+)=(.*)")


def settings(text: str) -> dict[str, str]:
    return {found[1]: found[2] for line in text.splitlines() if (found := _SETTING.fullmatch(line))}


def own_keys(kind: Any) -> dict[str, Any]:
    """Return the settings that a class itself defines, without those that it inherits from
    another class."""
    inherited = keys(ConsumerConfig) if kind is MemberConfig else {}
    return {name: row for name, row in keys(kind).items() if name not in inherited}


def section(name: str) -> str:
    _, _, after = (CONF / "client.conf").read_text("utf-8").partition(f"#[{name}]\n")
    return re.split(r"^#\[", after, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (BrokerConfig, (CONF / "broker.conf").read_text("utf-8")),
        (TopicConfig, (CONF / "topic.conf").read_text("utf-8")),
        (ProducerConfig, section("producer")),
        (ConsumerConfig, section("consumer")),
        (MemberConfig, section("member")),
    ],
    ids=["broker", "topic", "producer", "consumer", "member"],
)
def test_conf_files_list_every_setting_with_its_default(kind: Any, text: str) -> None:
    defaults = kind()
    expected = {
        row.key: value_text(getattr(defaults, name)) for name, row in own_keys(kind).items()
    }
    assert settings(text) == expected
    assert len(_SETTING.findall(text)) >= len(expected)


@pytest.mark.parametrize("name", ["broker.conf", "topic.conf", "client.conf"])
def test_every_setting_has_a_paragraph_that_names_its_unit(name: str) -> None:
    lines = (CONF / name).read_text("utf-8").splitlines()
    rows = {
        row.key: row
        for kind in (BrokerConfig, TopicConfig, ProducerConfig, MemberConfig)
        for row in keys(kind).values()
    }
    for number, line in enumerate(lines):
        if (found := _SETTING.fullmatch(line)) is None:
            continue
        paragraph = ""
        above = number - 1
        while lines[above].startswith("# "):
            paragraph = f"{lines[above]} {paragraph}"
            above -= 1
        assert paragraph, f"{name}: {line} has no paragraph"
        unit = {"ms": "Milliseconds", "bytes": "Bytes"}.get(rows[found[1]].unit)
        if unit:
            assert unit in paragraph, f"{name}: {line} does not name its unit"


def test_conf_files_are_loaded_as_the_default_settings(tmp_path: Path) -> None:
    assert load(BrokerConfig, CONF / "broker.conf") == BrokerConfig()
    uncommented = re.sub(
        r"^#(?=[a-z0-9.]+=)", "", (CONF / "topic.conf").read_text("utf-8"), flags=re.MULTILINE
    )
    (tmp_path / "topic.conf").write_text(uncommented, "utf-8")
    assert load(TopicConfig, tmp_path / "topic.conf") == TopicConfig()


def test_zookeeper_cfg_equals_the_embedded_servers_settings(tmp_path: Path) -> None:
    def read(text: str) -> dict[str, str]:
        pairs = (line.partition("=") for line in text.splitlines() if line and line[0] != "#")
        return {key: value for key, _, value in pairs}

    server = EmbeddedZooKeeper(tmp_path, port=2181)
    embedded = read(server.write_config().read_text("utf-8"))
    written = read((CONF / "zookeeper.cfg").read_text("utf-8"))
    for own in ("dataDir", "clientPortAddress"):
        embedded.pop(own, None)
        written.pop(own, None)
    assert written == embedded


def test_logging_conf_is_valid_for_pythons_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = configparser.RawConfigParser()
    assert parser.read(CONF / "logging.conf")
    seen = []
    monkeypatch.setattr(logging.config, "_install_loggers", lambda *_: seen.append("loggers"))
    logging.config.fileConfig(CONF / "logging.conf", disable_existing_loggers=False)
    assert seen == ["loggers"]
