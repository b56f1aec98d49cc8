"""Tests of the examples in the help of every command: each must be an accepted command line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from support.command_tree import PROGRAMS, commands, program

from broker_lite.cli.main import COMMANDS, cli, run

EXAMPLES_MIN, EXAMPLES_MAX = 2, 4


def examples(command: click.Command) -> list[str]:
    """Return the example lines of a command's help."""
    text = (command.help or "").partition("Examples:\n")[2]
    return [line.strip() for line in text.splitlines() if line.strip()]


ALL = list(commands(cli))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_help_of_each_command_has_examples_of_it(
    path: tuple[str, ...], command: click.Command
) -> None:
    found = examples(command)
    assert EXAMPLES_MIN <= len(found) <= EXAMPLES_MAX
    assert any(f"logbus {' '.join(path)}" in line for line in found)
    for line in found:
        assert len(line) <= 76, "an example must fit on a line of an 80-column terminal"


@pytest.mark.parametrize("line", sorted({line for _, each in ALL for line in examples(each)}))
def test_example_in_a_help_is_accepted_by_the_command_line(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def accept(_: click.Path, value: Any, *__: object) -> Any:
        return Path(value)  # The files that examples name do not exist.

    called = []
    monkeypatch.setattr(click.Path, "convert", accept)
    monkeypatch.setattr(click.Command, "invoke", lambda self, _: called.append(self))
    for word in words_of(line):
        if word[0] in PROGRAMS:
            command = program(word[0])
            assert command is not None
            command.main(word[1:], standalone_mode=False)
        else:
            assert run(word) == 0, capsys.readouterr().err
    assert called
    assert {word[0] for word in words_of(line)} <= set(COMMANDS)


def words_of(line: str) -> list[list[str]]:
    """Return the arguments of each call of logbus in a line of shell."""
    calls = []
    for part in re.split(r" (?:\||&&) ", line):
        words = shlex.split(re.split(" >>? ", part)[0])
        if words[0] == "logbus":
            calls.append(words[1:])
    return calls
