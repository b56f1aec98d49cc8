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
@click.option("--ready-fd", type=int, hidden=True, help="Where to write one line once it serves.")
def broker(path: str, ready_fd: int | None) -> int:
    """Run one broker in the foreground until SIGTERM or Ctrl-C.

    It prints one JSON line with its id, host, port and pid once it serves.
    """
    from broker_lite.config import BrokerConfig, load
    from broker_lite.server.broker import main

    return main(load(BrokerConfig, path), ready_fd)
