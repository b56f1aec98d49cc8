"""``logbus broker``: run one broker in the foreground, for a service manager or ``LocalCluster``;
show the brokers of a cluster, or remove one for good (``retire``)."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options
from broker_lite.cli.context import cluster_options, open_admin
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.errors import (
    BrokerIdNotRegisteredError,
    InvalidConfigError,
    InvalidRequestError,
)

if TYPE_CHECKING:
    from broker_lite.observing.sample import ClusterSample

COLUMNS = ("id", "address", "running", "controller", "rack", "version", "leaders", "replicas",
           "in_sync", "data", "free")  # fmt: skip
"""The columns of the table of ``logbus broker list``."""


@click.group(invoke_without_command=True)
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False),
    help="Settings as key=value lines; see conf/broker.conf.",
)
@click.option(
    "--logging",
    "logging_path",
    type=click.Path(exists=True, dir_okay=False),
    help="What to log, and where; see conf/logging.conf. Default: INFO to stderr.",
)
@click.option("--begin-fd", type=int, hidden=True, help="Pipe with a byte that permits the start.")
@click.option("--ready-fd", type=int, hidden=True, help="Pipe to report to once it serves.")
@click.option(
    "--output",
    "output_path",
    hidden=True,
    help="File that stdout and stderr write to; it is rotated.",
)
@click.pass_context
def broker(
    context: click.Context,
    path: str | None,
    logging_path: str | None,
    begin_fd: int | None,
    ready_fd: int | None,
    output_path: str | None,
) -> int:
    """Run one broker in the foreground until SIGTERM or Ctrl-C; list, describe or retire brokers.

    Once the broker serves clients, it prints one JSON line with its id, host, port and pid.

    \b
    Examples:
      logbus broker --config broker.conf
      logbus broker --config broker.conf --logging logging.conf
      logbus broker list
      logbus broker retire 2
    """
    if context.invoked_subcommand is not None:
        return 0
    if path is None:
        raise click.UsageError("give --config FILE to run a broker, or a command")
    # Garbage collection would take a fifth of the import time. Imported objects live until the
    # exit, so later collections skip them (gc.freeze).
    gc.disable()
    import logging.config

    from broker_lite.config import BrokerConfig, load
    from broker_lite.server.process import main

    gc.freeze()
    gc.enable()
    if begin_fd is not None and not _may_begin(begin_fd):
        return 1
    if logging_path is not None:
        # Configure logging first. The broker's own logging.basicConfig then has no effect, because
        # the root logger already has a handler.
        try:
            logging.config.fileConfig(logging_path, disable_existing_loggers=False)
        # The file may name handler classes of other packages, which may raise any error.
        except Exception as error:
            raise InvalidConfigError(
                f"--logging {logging_path} cannot be used: {error!r}. Correct it; a file that "
                "works: logbus config template logging"
            ) from None
    return main(load(BrokerConfig, path), ready_fd, output_path)


def _may_begin(begin_fd: int) -> bool:
    """Wait for a byte from the pipe ``begin_fd``: the parent process allows this broker to start.
    Return False if the parent closes the pipe instead."""
    with os.fdopen(begin_fd, "rb", buffering=0) as pipe:
        return bool(pipe.read(1))


def _rows(sample: ClusterSample) -> list[dict[str, Any]]:
    from broker_lite.observing.brokers import broker_rows

    named = {"runs": "running", "is_controller": "controller"}
    return [{named.get(key, key): row[key] for key in row} for row in broker_rows(sample)]


@broker.command("list")
@cluster_options
@output.output_option
def list_brokers(cluster: ChosenCluster, form: str | None) -> None:
    """List brokers: address, rack, version, partitions, data and free disk space.

    A broker that does not run is listed if it holds a replica.

    \b
    Examples:
      logbus broker list
      logbus broker list -b bus1:9092 -o json
    """
    from broker_lite.observing.sample import take_sample

    with open_admin(cluster) as admin:
        rows = _rows(take_sample(admin))
    if output.is_table(form):
        for row in rows:
            row["data"], row["free"] = map(output.size, (row["size_bytes"], row["disk_free_bytes"]))
    output.show(rows, form, COLUMNS if output.is_table(form) else None)


@broker.command()
@click.argument("broker_id", type=int)
@cluster_options
@output.output_option
def describe(broker_id: int, cluster: ChosenCluster, form: str | None) -> None:
    """Show one broker and its replicas. 'logbus config describe --broker ID' shows its settings.

    \b
    Examples:
      logbus broker describe 1
      logbus broker describe 1 -b bus1:9092 -o json
    """
    from broker_lite.observing.brokers import replica_rows
    from broker_lite.observing.sample import take_sample

    with open_admin(cluster) as admin:
        sample = take_sample(admin)
    found = next((row for row in _rows(sample) if row["id"] == broker_id), None)
    if found is None:
        raise BrokerIdNotRegisteredError(f"no broker has id {broker_id}; see: logbus broker list")
    partitions = replica_rows(sample, broker_id)
    if not output.is_table(form):
        output.show_one(found | {"partitions": partitions}, form)
        return
    used = found["disk_used"]
    sizes = {key: output.size(found[key]) for key in ("size_bytes", "disk_free_bytes")}
    shown = found | sizes | {"disk_used": None if used is None else f"{used:.0%}"}
    output.show_one({key.removesuffix("_bytes"): shown[key] for key in shown}, form)
    click.echo()
    rows = [row | {"size": output.size(row["size_bytes"])} for row in partitions]
    output.show(rows, form, ("topic", "partition", "role", "in_sync", "size"))


@broker.command()
@click.argument("broker_id", type=int)
@change_options
@cluster_options
@output.output_option
def retire(broker_id: int, change: ChangeOptions, cluster: ChosenCluster, form: str | None) -> None:
    """Remove a broker that will not return.

    The broker must be down and hold no replicas: logbus topic reassign --off ID moves them. A
    retired broker no longer counts for the default number of replicas.

    \b
    Examples:
      logbus broker retire 2
      logbus broker retire 2 -b bus1:9092 --yes
    """
    with open_admin(cluster) as admin, output.ChangeReport(form) as report:
        view = admin.cluster()
        if broker_id in view.brokers:
            raise InvalidRequestError(f"broker {broker_id} is running: stop it first")
        parts = [part for topic in view.topics.values() for part in topic.partitions]
        replicas = sum(broker_id in part.replicas for part in parts)
        if replicas:
            raise InvalidRequestError(
                f"broker {broker_id} holds {replicas} replicas; move them to other brokers first: "
                f"logbus topic reassign --off {broker_id}"
            )
        question = f"Retire broker {broker_id}? A later start with its data directory is refused."
        if change.is_wanted(question):
            admin.retire_broker(broker_id)
            report.add({"broker": broker_id, "retired": True}, f"broker {broker_id}: retired")
