"""Tests of the question that a command asks before it makes a change, and of each answer."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from broker_lite.cli.change import ChangeOptions
from broker_lite.cli.main import EXIT_FAILED

ASKED = ChangeOptions(yes=False, dry_run=False)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | BaseException], None]:
    """Return a function that sets the user's answer to the prompt, or the error that the terminal
    raises instead."""

    def give(said: str | BaseException) -> None:
        def read(_: str) -> str:
            if isinstance(said, BaseException):
                raise said
            return said

        monkeypatch.setattr(click.termui, "visible_prompt_func", read)

    return give


def test_command_makes_a_change_that_the_user_confirms(answer: Callable[[str], None]) -> None:
    answer("y")
    assert ASKED.is_wanted("Delete?")


@pytest.mark.parametrize("said", ["n", "", EOFError()])
def test_command_changes_nothing_and_fails_if_the_user_answers_no(
    said: str | BaseException,
    answer: Callable[[str | BaseException], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer(said)
    with pytest.raises(click.exceptions.Exit) as left:
        ASKED.is_wanted("Delete?")
    assert left.value.exit_code == EXIT_FAILED
    assert "nothing was changed; --yes answers the question" in capsys.readouterr().err


def test_ctrl_c_at_the_confirmation_aborts_the_command(
    answer: Callable[[BaseException], None],
) -> None:
    answer(KeyboardInterrupt())
    with pytest.raises(click.Abort):
        ASKED.is_wanted("Delete?")


def test_command_with_dry_run_or_yes_asks_for_no_confirmation(
    answer: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(AssertionError("asked"))
    assert not ChangeOptions(yes=True, dry_run=True).is_wanted("Delete 3 logs?")
    assert capsys.readouterr().err == "Delete 3 logs?\nnothing was changed (--dry-run)\n"
    assert not ChangeOptions(yes=False, dry_run=True).is_wanted()
    assert capsys.readouterr().err == "nothing was changed (--dry-run)\n"
    assert ChangeOptions(yes=True, dry_run=False).is_wanted("Delete?")
    assert ASKED.is_wanted()
