"""``logbus console``: the web console of a cluster."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from broker_lite.cli import output
from broker_lite.cli.context import bootstrap, cluster_options
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.numbers import PORT, Real


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=PORT,
    default=8088,
    show_default=True,
    help="Port to listen on; 0: any free one.",
)
@click.option("--read-only", is_flag=True, help="Serve no page that changes the cluster.")
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Allow changes also with --host, or with a client certificate and no login.",
)
@click.option(
    "--interval",
    type=Real(min=0.2),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings of the cluster.",
)
@click.option("--no-payloads", is_flag=True, help="Hide keys, values and headers of records.")
@click.option("--no-pages", is_flag=True, help="Serve only /metrics and /healthz: an exporter.")
@click.option("--by-partition", is_flag=True, help="Serve metrics of each partition, too.")
@click.option(
    "--compat",
    type=click.Choice(("kafka_exporter",)),
    help="Serve metrics under the names of kafka_exporter, too.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Another host name by which browsers call the console.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the certificate chain; needed off loopback.",
)
@click.option(
    "--tls-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the private key. Default: in the certificate's file.",
)
@click.option("--ready-fd", type=int, hidden=True, help="Descriptor to write the address to.")
@cluster_options
@output.output_option
def console(
    host: str,
    port: int,
    read_only: bool,
    allow_changes: bool,
    interval: float,
    no_payloads: bool,
    no_pages: bool,
    by_partition: bool,
    compat: str | None,
    allowed_hosts: tuple[str, ...],
    tls_certificate: Path | None,
    tls_key: Path | None,
    ready_fd: int | None,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Serve the web console of a cluster until Ctrl-C.

    The console listens on loopback. With another --host it demands TLS and brokers with logins, and
    allows no changes without --allow-changes. If the brokers demand a login, users sign in with
    their own credentials; the console uses its own credentials only for its overview. If it
    connects with a client certificate and no login, it allows no changes without --allow-changes.
    -o prints the console's address on stdout.

    \b
    Examples:
      logbus console
      logbus console -b kafka1:9092 --port 9000 --read-only
      logbus console --context prod --no-payloads
      logbus console --no-pages --by-partition --compat kafka_exporter --port 9100
    """
    from broker_lite.bus import connect
    from broker_lite.console.service import serve
    from broker_lite.console.settings import ConsoleSettings

    settings = ConsoleSettings(
        host=host,
        port=port,
        read_only=read_only,
        allow_changes=allow_changes,
        interval_s=interval,
        hides_payloads=no_payloads,
        serves_pages=not no_pages,
        by_partition=by_partition,
        compat=compat or "",
        allowed_hosts=allowed_hosts,
        certificate=tls_certificate,
        key=tls_key,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Log at level INFO, because the console logs each change with its user and outcome at this
    # level.
    logging.getLogger("logbus.console").setLevel(logging.INFO)
    with connect(bootstrap(cluster), client_id="logbus-console") as bus:
        serve(bus, settings, lambda url: _print_url(url, ready_fd, form))


def _print_url(url: str, ready_fd: int | None, form: str | None) -> None:
    """Print the console's address, and write it to the pipe of a parent process."""
    output.report_change({"console": url}, form, f"console: {url}  (Ctrl-C stops it)")
    if ready_fd is not None:
        with os.fdopen(ready_fd, "w", encoding="utf-8") as pipe:
            pipe.write(url + "\n")
