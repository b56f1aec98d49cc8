"""``logbus broker``: one broker in the foreground, for a service manager or ``LocalCluster``."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Settings as key=value lines; see conf/broker.conf.",
)
@click.option(
    "--logging",
    "logging_path",
    type=click.Path(exists=True, dir_okay=False),
    help="What to log, and where; see conf/logging.conf. Default: INFO to stderr.",
)
@click.option("--ready-fd", type=int, hidden=True, help="Where to write one line once it serves.")
def broker(path: str, logging_path: str | None, ready_fd: int | None) -> int:
    """Run one broker in the foreground until SIGTERM or Ctrl-C.

    It prints one JSON line with its id, host, port and pid once it serves.
    """
    import logging.config

    from broker_lite.config import BrokerConfig, load
    from broker_lite.server.broker import main

    if logging_path is not None:
        # The first configuration of the root logger stands; the broker's own then does nothing.
        logging.config.fileConfig(logging_path, disable_existing_loggers=False)
    return main(load(BrokerConfig, path), ready_fd)
