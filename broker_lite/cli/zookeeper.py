"""``logbus zookeeper``: restrict access to a cluster's znodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options

if TYPE_CHECKING:
    from broker_lite.metadata.zookeeper.tls import ZooKeeperTls


F = TypeVar("F", bound=Callable[..., Any])


class TlsOptions(NamedTuple):
    """The options --zookeeper-ca, --zookeeper-certificate and --zookeeper-insecure."""

    ca: str | None
    certificate: str | None
    insecure: bool

    def for_address(self, address: str) -> ZooKeeperTls | None:
        """Return the TLS settings for a connection to ZooKeeper at ``address``; None for plain
        text.

        Raises InvalidConfigError without --zookeeper-ca if ``address`` has a host on another
        machine, unless --zookeeper-insecure is given."""
        from broker_lite.metadata.zookeeper.tls import ZooKeeperTls, check_local

        if self.ca:
            return ZooKeeperTls(self.ca, self.certificate or "")
        if not self.insecure:
            check_local(
                address,
                "--zookeeper",
                "secrets of the cluster",
                "name the secureClientPort of ZooKeeper, and its CA with --zookeeper-ca FILE; or "
                "give --zookeeper-insecure on a private network",
            )
        return None


def tls_options(command: F) -> F:
    """Add the options of ``TlsOptions``. The command receives them as ``tls``."""

    @functools.wraps(command)
    def with_tls(
        *args: Any,
        zookeeper_ca: str | None,
        zookeeper_certificate: str | None,
        zookeeper_insecure: bool,
        **values: Any,
    ) -> Any:
        if zookeeper_certificate and not zookeeper_ca:
            raise click.UsageError("--zookeeper-certificate needs --zookeeper-ca")
        tls = TlsOptions(zookeeper_ca, zookeeper_certificate, zookeeper_insecure)
        return command(*args, tls=tls, **values)

    file = click.Path(exists=True, dir_okay=False)
    with_insecure = click.option(
        "--zookeeper-insecure",
        is_flag=True,
        help="Connect to another machine without TLS, on a private network.",
    )(cast(F, with_tls))
    with_certificate = click.option(
        "--zookeeper-certificate",
        type=file,
        help="The brokers' zookeeper.ssl.keystore.location.",
    )(with_insecure)
    return click.option(
        "--zookeeper-ca",
        type=file,
        help="Connect with TLS: the brokers' zookeeper.ssl.truststore.location.",
    )(with_certificate)


@click.group()
def zookeeper() -> None:
    """Restrict ZooKeeper to the brokers.

    \b
    Examples:
      logbus zookeeper secure --zookeeper localhost:2181/logbus --auth-file a
      logbus zookeeper secure --zookeeper zk1:2281 --auth-file a --zookeeper-ca ca
    """


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
@tls_options
@change_options
@output.output_option
def secure(
    address: str,
    auth_file: Path,
    tls: TlsOptions,
    change: ChangeOptions,
    form: str | None,
) -> None:
    """Restrict every znode of a cluster to the brokers' credential. If --auth-file has two
    credentials, because one replaces the other, both give access.

    First set zookeeper.auth.file on every broker and restart the brokers one by one: a broker
    without the credential can no longer write.

    \b
    Examples:
      logbus zookeeper secure --zookeeper localhost:2181/logbus --auth-file a
      logbus zookeeper secure --zookeeper localhost:2181 --auth-file a --dry-run
      logbus zookeeper secure --zookeeper zk1:2281 --auth-file a --zookeeper-ca ca
    """
    from broker_lite.metadata.zookeeper.znode_acls import close_znodes

    settings = tls.for_address(address)
    question = f"Restrict all znodes of {address} to the credential of {auth_file}?"
    if not change.is_wanted(f"{question} A broker without it cannot write any more."):
        return
    count = close_znodes(address, auth_file, {}, tls=settings)
    said = f"{count} znodes of {address} belong to the credential of {auth_file} alone"
    output.report_change({"zookeeper": address, "znodes": count}, form, said)
