"""Parse positions in a log (``earliest``, ``@-1h``, ``+100``, …) from the command line, for
``--start``, ``--end``, ``groups seek`` and ``topic trim``."""

from __future__ import annotations

from collections.abc import Mapping

import click

from broker_lite.cli import output
from broker_lite.client.administration import log_positions
from broker_lite.errors import InvalidRequestError
from broker_lite.model import TopicPartition


def parse(text: str) -> log_positions.PositionSpec:
    """Parse a position in a log. Raises click.BadParameter with the accepted forms."""
    try:
        return log_positions.parse(text)
    except InvalidRequestError as error:
        raise click.BadParameter(error.message) from None


def say_outside(resolved: Mapping[TopicPartition, log_positions.ResolvedOffset]) -> None:
    """Say on stderr for which partitions the position is outside of the log, and which end of the
    log stands for it."""
    for tp, at in resolved.items():
        if at.wanted != at.offset:
            end = "earliest offset" if at.wanted < at.offset else "end"
            output.say(f"{tp}: {at.wanted} is outside of the log; using its {end} {at.offset}")
