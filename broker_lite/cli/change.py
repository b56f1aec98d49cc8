"""Confirmation of changes: the options ``--yes`` and ``--dry-run``."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import click

from broker_lite.cli import output
from broker_lite.cli.context import Command


class ChangeOptions(NamedTuple):
    """The values of ``--yes`` and ``--dry-run``."""

    yes: bool
    dry_run: bool

    def is_wanted(self, question: str = "") -> bool:
        """Return whether to make the change: False with --dry-run, else True.

        Asks ``question`` first unless --yes is given; an empty question asks nothing. Raises
        click.Abort if the answer is no.
        """
        if self.dry_run:
            output.say("nothing was changed (--dry-run)")
        elif question and not self.yes:
            try:
                click.confirm(question, abort=True, err=True)
            except click.Abort:
                output.say("nothing was changed; --yes answers the question")
                raise
        return not self.dry_run


def change_options(command: Command) -> Command:
    """Add ``--yes`` and ``--dry-run``; the command receives them as ``change``."""

    @functools.wraps(command)
    def changing(*, yes: bool, dry_run: bool, **rest: Any) -> Any:
        return command(change=ChangeOptions(yes, dry_run), **rest)

    changing = click.option("--dry-run", is_flag=True, help="Only show what would change.")(
        changing
    )
    return click.option("--yes", is_flag=True, help="Make the change without asking.")(changing)


if_exists_option = click.option(
    "--if-exists", is_flag=True, help="No error if there is nothing to delete."
)
