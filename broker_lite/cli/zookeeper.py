"""``logbus zookeeper``: the access to a cluster's znodes."""

from __future__ import annotations

from pathlib import Path

import click

from broker_lite.cli import output


@click.group()
def zookeeper() -> None:
    """Close ZooKeeper to all but the brokers."""


@zookeeper.command()
@click.option(
    "--zookeeper",
    "address",
    required=True,
    metavar="HOST:PORT/CHROOT",
    help="The cluster's zookeeper.connect.",
)
@click.option(
    "--auth-file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The brokers' zookeeper.auth.file.",
)
def secure(address: str, auth_file: Path) -> None:
    """Give every znode of a cluster to the brokers' credential.

    Set zookeeper.auth.file on every broker and restart them one after another first.
    """
    from broker_lite.metadata.zookeeper import close_znodes

    count = close_znodes(address, auth_file, {})
    output.say(f"{count} znodes of {address} belong to the credential of {auth_file} alone")
