"""Parse positions in a log (``earliest``, ``@-1h``, ``+100``, …) from the command line, for
``--start``, ``--end`` and ``groups seek``."""

from __future__ import annotations

import click

from broker_lite.client.administration import log_positions
from broker_lite.client.administration.log_positions import PositionSpec as PositionSpec
from broker_lite.client.administration.log_positions import resolve as resolve
from broker_lite.client.administration.log_positions import resolved_offsets as resolved_offsets
from broker_lite.errors import InvalidRequestError


def parse(text: str, now_ms: int | None = None) -> PositionSpec:
    """Parse a position in a log. Times such as ``@-1h`` count back from ``now_ms``. Raises
    click.BadParameter with the accepted forms."""
    try:
        return log_positions.parse(text, now_ms)
    except InvalidRequestError as error:
        raise click.BadParameter(error.message) from None
