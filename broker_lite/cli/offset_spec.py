"""Parse positions in a log (``earliest``, ``@-1h``, ``+100``, …) from the command line, for
``--start``, ``--end`` and ``groups seek``."""

from __future__ import annotations

import click

from broker_lite.client.administration import log_positions
from broker_lite.errors import InvalidRequestError


def parse(text: str) -> log_positions.PositionSpec:
    """Parse a position in a log. Raises click.BadParameter with the accepted forms."""
    try:
        return log_positions.parse(text)
    except InvalidRequestError as error:
        raise click.BadParameter(error.message) from None
