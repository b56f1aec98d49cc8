"""The cluster that a command talks to: two options that every such command has, and the client."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from broker_lite.errors import LogbusError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.operations.cluster import ClusterView, TopicMetadata

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(command: F) -> F:
    """Add ``-b`` and ``--zookeeper``; without them the environment or the last ``logbus up``
    decides. Errors of the client name these options."""

    @functools.wraps(command)
    def told(*args: Any, **values: Any) -> Any:
        try:
            return command(*args, **values)
        except LogbusError as error:
            from broker_lite.cli.option_names import spellings_of, spelt

            error.message = spelt(error.message, spellings_of(click.get_current_context().command))
            raise

    with_file = click.option(
        "-F",
        "--client-config",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=_use_client_config,
        help="File with security.protocol, sasl.username, … Default: LOGBUS_CLIENT_CONFIG.",
    )(cast(F, told))
    wrapped = click.option(
        "--zookeeper", metavar="HOST:PORT/CHROOT", help="Find the brokers in ZooKeeper."
    )(with_file)
    return click.option(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        help="Brokers to begin with. Default: LOGBUS_BOOTSTRAP_SERVERS, LOGBUS_ZOOKEEPER, or the "
        "cluster that 'logbus up' last started.",
    )(wrapped)


def _use_client_config(_: click.Context, __: click.Parameter, path: str | None) -> None:
    """Let all connections of this process use the file's security settings."""
    if path is not None:
        os.environ["LOGBUS_CLIENT_CONFIG"] = path


def settings_option(command: F) -> F:
    """Add ``-X`` for client settings without an option of their own."""
    return click.option(
        "-X",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any other setting of the client, as conf/client.conf has them.",
    )(command)


def bootstrap(bootstrap_servers: str | None, zookeeper: str | None) -> str:
    """Return the brokers' addresses. Raises NoClusterError with the next step."""
    from broker_lite.client import discovery

    return discovery.resolve(bootstrap_servers, zookeeper)


def open_admin(bootstrap_servers: str | None, zookeeper: str | None) -> Admin:
    """Return an admin client; the caller closes it. It imports no pyarrow, and kazoo only with
    --zookeeper."""
    from broker_lite.client.administration.admin import Admin

    return Admin(bootstrap(bootstrap_servers, zookeeper), client_id="logbus-cli")


def found_topic(view: ClusterView, name: str, *, offer: bool = True) -> TopicMetadata:
    """Return the topic's metadata. Raises UnknownTopicOrPartitionError with the nearest names,
    or with the command that creates the topic unless ``offer`` is False."""
    topic = view.topics.get(name)
    if topic is not None and topic.error is None:
        return topic
    if topic is not None and not isinstance(topic.error, UnknownTopicOrPartitionError):
        assert topic.error is not None
        raise topic.error
    known = [other for other, facts in view.topics.items() if facts.error is None]
    near = difflib.get_close_matches(name, known, n=3)
    hint = ""
    if near:
        hint = f"; did you mean {', '.join(near)}?"
    elif offer:
        hint = f"; create it with: logbus topic create {name}"
    raise UnknownTopicOrPartitionError(f"there is no topic {name!r}{hint}")


def key_values(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Return ``k=v`` arguments as a mapping. Raises click.BadParameter for anything else."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found


def name_pattern(regex: str | None, option: str = "--regex") -> re.Pattern[str]:
    """Return a pattern for whole names; None: all. Raises click.BadParameter."""
    try:
        return re.compile(regex or ".*")
    except re.error as error:
        raise click.BadParameter(f"{regex!r}: {error}", param_hint=option) from None
