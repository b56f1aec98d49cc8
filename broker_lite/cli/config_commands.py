"""``logbus config``: show settings with their values and where these come from, and print the
template files of ``conf/``."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.completion import TOPIC
from broker_lite.cli.context import cluster_options, open_admin
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.numbers import Whole
from broker_lite.config import BrokerConfig, TopicConfig, keys, load, text

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import ConfigEntry

TEMPLATES = {
    "broker": "broker.conf",
    "topic": "topic.conf",
    "client": "client.conf",
    "logging": "logging.conf",
    "spark": "spark-defaults.conf",
    "zookeeper": "zookeeper.cfg",
}
"""The files of ``conf/`` by template name."""


@click.group()
def config() -> None:
    """Settings: values, defaults, where they come from, and templates of the files.

    \b
    Examples:
      logbus config template broker > broker.conf
      logbus config describe --file broker.conf --changed
      logbus config describe --topic events
    """


@config.command()
@click.argument("name", type=click.Choice(list(TEMPLATES)))
def template(name: str) -> None:
    """Print a settings file with every setting, its meaning and its default.

    \b
    Examples:
      logbus config template broker > broker.conf
      logbus config template logging > logging.conf
    """
    file = importlib.resources.files("broker_lite") / "conf" / TEMPLATES[name]
    click.echo(file.read_text("utf-8"), nl=False)


@config.command()
@click.option("--topic", type=TOPIC, help="The settings of this topic.")
@click.option("--broker", "broker_id", type=Whole(0), help="The settings of this broker.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The settings of a broker with this file; needs no cluster.",
)
@click.option("--changed", is_flag=True, help="Only settings that differ from logbus's default.")
@cluster_options
@output.output_option
def describe(
    topic: str | None,
    broker_id: int | None,
    path: Path | None,
    changed: bool,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Show effective settings, their defaults, and where each value comes from.

    \b
    Examples:
      logbus config describe --topic events
      logbus config describe --broker 0 --changed
      logbus config describe --file broker.conf -o json
    """
    if sum(each is not None for each in (topic, broker_id, path)) != 1:
        raise click.UsageError("give one of --topic NAME, --broker ID, --file FILE")
    if path is not None:
        rows = list(_rows_of_file(path))
    else:
        topics, brokers = [topic] if topic else [], [] if broker_id is None else [broker_id]
        with open_admin(cluster) as admin:
            (entries,) = admin.describe_configs(topics=topics, brokers=brokers).values()
        rows = list(_rows(entries, text(TopicConfig() if topic else BrokerConfig())))
    shown = [row for row in rows if not changed or row["value"] != row["default"]]
    output.show(shown, form, ("setting", "value", "default", "source"))
    if not shown:
        output.say("every setting has its default")


def _rows(entries: Mapping[str, ConfigEntry], defaults: Mapping[str, str]) -> Iterator[Any]:
    for name, entry in sorted(entries.items()):
        yield {
            "setting": name,
            "value": entry.value,
            # ``defaults`` lacks dynamic settings, such as a throttle's rate. While a dynamic
            # setting has its default, this default is ``entry.value``; otherwise it is unknown.
            "default": defaults.get(name, entry.value if entry.source == "default" else None),
            "source": entry.source,
            "doc": entry.documentation or None,
        }


def _rows_of_file(path: Path) -> Iterator[Any]:
    values, defaults = text(load(BrokerConfig, path)), text(BrokerConfig())
    written = {
        line.partition("=")[0].strip()
        for line in path.read_text("utf-8").splitlines()
        if "=" in line and not line.strip().startswith("#")
    }
    for row in sorted(keys(BrokerConfig).values(), key=lambda row: row.key):
        is_given = row.key in written or any(each.startswith(f"{row.key}.") for each in written)
        yield {
            "setting": row.key,
            "value": values[row.key],
            "default": defaults[row.key],
            "source": str(path) if is_given else "default",
            "doc": row.doc,
        }
