"""``logbus context``: name clusters, and select the one that commands talk to."""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import Any

import click

from broker_lite.cli import contexts, output
from broker_lite.cli.change import ChangeOptions, change_options, if_exists_option
from broker_lite.cli.context import key_values
from broker_lite.cli.contexts import CONTEXT, Context
from broker_lite.cli.nouns import Noun
from broker_lite.client.discovery import join, parse_endpoints
from broker_lite.config.client_security import USERNAME
from broker_lite.errors import InvalidConfigError


@click.group(cls=Noun)
def context() -> None:
    """Named clusters, and the one that commands use.

    A command uses, in this order: -b or --zookeeper; --context; bootstrap.servers in the file of
    -F; LOGBUS_CONTEXT; LOGBUS_BOOTSTRAP_SERVERS or LOGBUS_ZOOKEEPER; bootstrap.servers in the file
    of LOGBUS_CLIENT_CONFIG; the selected context; the cluster that 'logbus up' last started. Python
    and Spark ignore contexts.

    \b
    Examples:
      logbus context create prod -b kafka1:9092,kafka2:9092 --read-only
      logbus context use prod
      logbus topic list --context prod
    """


@context.command("list")
@output.output_option
def list_contexts(form: str | None) -> None:
    """List contexts; the selected one is marked.

    \b
    Examples:
      logbus context list
      logbus context list -o json
    """
    stored = contexts.load(contexts.path())
    rows = [_row(each, stored.selected) for each in stored.by_name.values()]
    output.show(rows, form)
    if not rows:
        output.say("there is no context; add one with: logbus context create NAME -b HOST:PORT")


def _row(context: Context, selected: str) -> dict[str, Any]:
    return {
        "name": context.name,
        "selected": context.name == selected,
        "bootstrap_servers": context.bootstrap_servers or None,
        "zookeeper": context.zookeeper or None,
        "read_only": context.read_only,
        "user": context.settings.get(USERNAME),
    }


@context.command()
@click.argument("name", type=CONTEXT)
@output.output_option
def describe(name: str, form: str | None) -> None:
    """Show a context with its settings. A context holds no password.

    \b
    Examples:
      logbus context describe prod
      logbus context describe prod -o json
    """
    stored = contexts.load(contexts.path())
    found = stored.get(name)
    password = {
        "password_file": found.password_file or None,
        "password_command": found.password_command or None,
    }
    row = _row(found, stored.selected) | password | {"settings": dict(found.settings)}
    output.show_one(row, form)


@context.command()
@click.argument("name")
@click.option("-b", "--bootstrap-servers", metavar="HOST:PORT,…", help="Bootstrap brokers.")
@click.option("--zookeeper", metavar="HOST:PORT/CHROOT", help="Find the brokers in ZooKeeper.")
@click.option("--read-only", is_flag=True, help="Refuse commands that change the cluster.")
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A security setting: security.protocol, ssl.ca.location, sasl.mechanism, sasl.username, …",
)
@click.option("--password-file", metavar="FILE", help="File whose first line is the password.")
@click.option(
    "--password-command",
    metavar="COMMAND",
    help="Command whose first line of output is the password; run without a shell.",
)
@click.option("--if-not-exists", is_flag=True, help="If the context exists, keep it as it is.")
@output.output_option
def create(
    name: str,
    bootstrap_servers: str | None,
    zookeeper: str | None,
    read_only: bool,
    settings: tuple[str, ...],
    password_file: str | None,
    password_command: str | None,
    if_not_exists: bool,
    form: str | None,
) -> None:
    """Add a context: a name for a cluster and its settings.

    \b
    Examples:
      logbus context create prod -b kafka1:9092,kafka2:9092 --read-only
      logbus context create prod -b kafka1:9093 --password-command 'pass logbus'
    """
    if bool(bootstrap_servers) == bool(zookeeper):
        raise click.UsageError("give the cluster's addresses: -b HOST:PORT,… or --zookeeper")
    if not name.isprintable() or name in ("", "-"):
        raise click.BadParameter(
            f"{name!r} cannot be a context's name; use printable characters, not '-' alone",
            param_hint="NAME",
        )
    if password_file and password_command:
        raise click.UsageError("give --password-file or --password-command, not both")
    pairs = key_values(settings, "-X")
    contexts.require_no_secret(pairs)
    stored = contexts.load(contexts.path())
    if name in stored.by_name:
        if if_not_exists:
            row = {**_row(stored.by_name[name], stored.selected), "created": False}
            output.report_change(row, form, f"{name}: exists")
            return
        raise InvalidConfigError(
            f"there is a context {name!r}; delete it first: logbus context delete "
            f"{shlex.quote(name)}"
        )
    new = Context(
        name,
        bootstrap_servers=join(parse_endpoints(bootstrap_servers)) if bootstrap_servers else "",
        zookeeper=zookeeper or "",
        read_only=read_only,
        password_file=os.path.abspath(os.path.expanduser(password_file)) if password_file else "",
        password_command=password_command or "",
        settings=pairs,
    )
    by_name = {**stored.by_name, name: new}
    contexts.save(contexts.path(), dataclasses.replace(stored, by_name=by_name))
    row = {**_row(new, stored.selected), "created": True}
    said = f"{name}: created; select it with: logbus context use {shlex.quote(name)}"
    output.report_change(row, form, said)


@context.command()
@click.argument("name", required=False, type=CONTEXT)
@click.option("--none", "is_none", is_flag=True, help="Select no context.")
@output.output_option
def use(name: str | None, is_none: bool, form: str | None) -> None:
    """Select the context of commands that name no cluster; '-' selects the previous one.

    \b
    Examples:
      logbus context use prod
      logbus context use -
      logbus context use --none
    """
    if (name is None) == (not is_none):
        raise click.UsageError("give the NAME of a context, '-' for the previous one, or --none")
    stored = contexts.load(contexts.path())
    if name == "-":
        if not stored.previous:
            raise InvalidConfigError("there is no previous context; give the NAME of a context")
        name = stored.previous
    chosen = "" if name is None else stored.get(name).name
    previous = stored.previous if chosen == stored.selected else stored.selected
    contexts.save(contexts.path(), dataclasses.replace(stored, selected=chosen, previous=previous))
    said = f"commands use {chosen}" if chosen else "no context is selected"
    output.report_change({"selected": chosen or None, "previous": previous or None}, form, said)


@context.command()
@click.argument("name", type=CONTEXT)
@if_exists_option
@change_options
@output.output_option
def delete(name: str, if_exists: bool, change: ChangeOptions, form: str | None) -> None:
    """Delete a context. The cluster stays as it is.

    \b
    Examples:
      logbus context delete prod
      logbus context delete prod --if-exists --dry-run
    """
    stored = contexts.load(contexts.path())
    if if_exists and name not in stored.by_name:
        output.report_change({"name": name, "deleted": False}, form, f"{name}: does not exist")
        return
    gone = stored.get(name).name
    if not change.is_wanted():
        return
    contexts.save(
        contexts.path(),
        contexts.Contexts(
            "" if stored.selected == gone else stored.selected,
            "" if stored.previous == gone else stored.previous,
            {key: value for key, value in stored.by_name.items() if key != gone},
        ),
    )
    output.report_change({"name": name, "deleted": True}, form, f"{name}: deleted")
