"""``logbus generate``: print files for running and watching a cluster."""

from __future__ import annotations

import importlib.resources
import json
import shlex
import sys
from pathlib import Path

import click

from broker_lite import __version__
from broker_lite.cli import alerts, deployment, output
from broker_lite.cli.dashboards import DASHBOARDS, dashboard


@click.group()
def generate() -> None:
    """Print files for running and watching a cluster: alerts, dashboards, units, images.

    Every file goes to stdout. Read it before you use it: addresses, sizes and names are examples.

    \b
    Examples:
      logbus generate prometheus-rules > logbus-rules.yml
      logbus generate grafana cluster > cluster.json
      logbus generate systemd > /etc/systemd/system/logbus-broker.service
      logbus generate systemd --user kafka --config /srv/logbus/broker.conf
    """


@generate.command("prometheus-rules")
@click.option(
    "--runbooks", metavar="URL", default="", help="Your documentation site; each alert links to it."
)
def prometheus_rules(runbooks: str) -> None:
    """Print alert rules for Prometheus (YAML).

    The alerts use the metrics of brokers (metrics.host and metrics.port), of topics and groups
    ('logbus console') and of Spark queries (logbus.LagMetrics).

    \b
    Examples:
      logbus generate prometheus-rules > logbus-rules.yml
      logbus generate prometheus-rules --runbooks https://docs.example.org/logbus
    """
    click.echo(alerts.rules(runbooks), nl=False)


@generate.command()
@click.argument("name", required=False, type=click.Choice(list(DASHBOARDS)))
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write all dashboards into this folder, one file each.",
)
def grafana(name: str | None, directory: Path | None) -> None:
    """Print a dashboard for Grafana 10.4 or later (JSON), or write all of them.

    In Grafana: Dashboards, New, Import.

    \b
    Examples:
      logbus generate grafana broker > broker.json
      logbus generate grafana --dir dashboards
    """
    if (name is None) == (directory is None):
        raise click.UsageError(
            f"give one dashboard ({', '.join(DASHBOARDS)}), or --dir FOLDER for all of them"
        )
    if name is not None:
        click.echo(json.dumps(dashboard(name), indent=2))
        return
    assert directory is not None
    for each in DASHBOARDS:
        path = directory / f"logbus-{each}.json"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(dashboard(each), indent=2) + "\n", "utf-8")
        except OSError as error:
            raise click.ClickException(
                f"{error.filename or path} cannot be written ({error.strerror}); give another --dir"
            ) from None
        output.say(f"wrote {path}")


@generate.command()
@click.option("--user", default="logbus", show_default=True, help="The user that runs the broker.")
@click.option(
    "--config",
    "config",
    default="/etc/logbus/broker.conf",
    show_default=True,
    help="The broker's settings; log.dir must be /var/lib/logbus or below.",
)
def systemd(user: str, config: str) -> None:
    """Print a systemd unit of one broker. The unit runs this installation of logbus.

    \b
    Examples:
      logbus generate systemd > /etc/systemd/system/logbus-broker.service
      logbus generate systemd --user kafka --config /srv/logbus/broker.conf
    """
    command = _argument(Path(sys.prefix) / "bin" / "logbus")
    # Make the path absolute: systemd starts the broker in the root folder.
    file = _argument(Path(config).absolute())
    print_template("broker.service", COMMAND=command, CONFIG=file, USER=user)


def _argument(path: Path) -> str:
    """Return a path as an argument of ExecStart, escaped: systemd replaces specifiers (%) and
    variables ($), and splits at spaces."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    text = text.replace("%", "%%").replace("$", "$$")
    return text if text == shlex.quote(text) else f'"{text}"'


@generate.command()
@click.option(
    "--all-in-one", "whole", is_flag=True, help="A whole cluster with Java, Spark and the console."
)
def docker(whole: bool) -> None:
    """Print a Dockerfile of a broker without Java, or of a whole cluster. Neither runs as root.

    \b
    Examples:
      logbus generate docker > Dockerfile
      logbus generate docker --all-in-one > Dockerfile
    """
    print_template("Dockerfile", **(deployment.WHOLE_IMAGE if whole else deployment.BROKER_IMAGE))


insecure_option = click.option(
    "--insecure", is_flag=True, help="Brokers without TLS and logins, for a closed network."
)


@generate.command()
@insecure_option
def compose(insecure: bool) -> None:
    """Print a compose file: ZooKeeper and three brokers from the Dockerfile beside it.

    The brokers demand logins over TLS. The first lines say how to make their certificates.

    \b
    Examples:
      logbus generate compose > compose.yaml
      logbus generate compose --insecure > compose.yaml
    """
    print_template("compose.yaml", **deployment.compose_parts(insecure=insecure))


@generate.command()
@insecure_option
def kubernetes(insecure: bool) -> None:
    """Print a StatefulSet of three brokers with its services and its disruption budget (YAML).

    The image is that of 'logbus generate docker'. ZooKeeper runs elsewhere: set its address. The
    brokers demand logins over TLS. The first lines say how to make their certificates.

    \b
    Examples:
      logbus generate kubernetes > logbus.yaml
      logbus generate kubernetes --insecure > logbus.yaml
    """
    print_template("kubernetes.yaml", **deployment.kubernetes_parts(insecure=insecure))


def print_template(name: str, **values: str) -> None:
    """Print a file of ``templates/`` with each @NAME@ replaced by its value."""
    files = importlib.resources.files("broker_lite.cli") / "templates"
    text = (files / name).read_text("utf-8")
    click.echo(deployment.filled(text, {**values, "VERSION": __version__}), nl=False)
