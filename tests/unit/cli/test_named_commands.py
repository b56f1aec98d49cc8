"""Tests that ``logbus`` commands in pages, messages and templates exist with their options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.command_tree import program

from broker_lite.cli.main import cli
from broker_lite.cli.nouns import Noun

ROOT = Path(__file__).parents[3]
FOLDERS = ("broker_lite", "conf", "docs/pages", "docs/sitegen", "notebooks", "pyspark_logbus")
ENDINGS = (".conf", ".html", ".md", ".py", ".yaml")

_NAMED = re.compile(r"(?<![\w./-])logbus((?: (?:--?[A-Za-z][\w-]*|[A-Za-z<{@%$\d][^\s`\"'|;&]*))+)")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")


def faults(text: str) -> Iterator[str]:
    """Yield an error for each option of a ``logbus`` command in this text that does not exist."""
    # Python code may spread a command over two adjacent string literals.
    joined = re.sub(r'"\s*\n\s*f?"', "", text)
    for found in _NAMED.finditer(joined):
        # In a sentence, a colon after a command ends it.
        words = [word.rstrip(".,)*") for word in re.split(r":(?:\s|$)", found[1])[0].split()]
        command: click.Command = cli
        path: list[str] = []
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            inner = command.get_command(click.Context(command), words[0])
            if inner is None:
                break
            path.append(words.pop(0))
            command = inner
        if not path:
            continue
        known = options(program(path[0]) or command)
        for word in words:
            name = word.partition("=")[0]
            is_known = name in known or (name[:2] in known and not name.startswith("--"))
            if _OPTION.fullmatch(name) and not is_known:
                yield f"{found[0]}: logbus {' '.join(path)} has no {name}"


def options(command: click.Command) -> set[str]:
    """Return a command's option names. ``logbus topic`` without a verb runs ``topic list``."""
    if isinstance(command, Noun):
        inner = command.get_command(click.Context(command), "list")
        assert inner is not None
        command = inner
    return {"-h", "--help"} | {name for each in command.params for name in each.opts}


def test_commands_in_pages_and_messages_exist_with_their_options() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    paths = [*paths, ROOT / "README.md", ROOT / "CHANGELOG.md"]
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in paths
        if path.suffix in ENDINGS
        for fault in faults(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("logbus topic reassign --off 2 --force", ["logbus topic reassign has no --force"]),
        ('"logbus topic reassign t "\n    f"--brokers 1"', ["topic reassign has no --brokers"]),
        ("`logbus groups -o json`, or `logbus up -d --console`.", []),
        ("logbus demo --kil", ["logbus demo has no --kil"]),
        ("the logbus of today --really", []),
    ],
)
def test_check_of_commands_in_texts_finds_an_unknown_command_or_option(
    text: str, said: list[str]
) -> None:
    found = list(faults(text))
    assert len(found) == len(said)
    assert all(each in fault for each, fault in zip(said, found, strict=True))
