"""The options that name a command's cluster, and the admin client for it."""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from broker_lite.cli.contexts import CONTEXT, ChosenCluster, choose_cluster
from broker_lite.errors import LogbusError, ReadOnlyContextError, UnknownTopicOrPartitionError
from broker_lite.model import TopicPartition
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.security.denials import cure

if TYPE_CHECKING:
    from broker_lite.cli.contexts import Context
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.operations.cluster import ClusterView, TopicMetadata

F = TypeVar("F", bound=Callable[..., Any])
Command = Callable[..., Any]
"""A command function whose parameters a decorator changes."""

READING = frozenset(
    {
        ("acl", "check"),
        ("acl", "list"),
        ("broker", "describe"),
        ("broker", "list"),
        ("checkpoint",),
        ("config", "describe"),
        ("console",),
        ("consume",),
        ("doctor",),
        ("export",),
        ("groups", "describe"),
        ("groups", "list"),
        ("groups", "members"),
        ("health",),
        ("lag",),
        ("quota", "list"),
        ("status",),
        ("top",),
        ("topic", "describe"),
        ("topic", "list"),
        ("transactions", "describe"),
        ("transactions", "hanging"),
        ("transactions", "list"),
        ("user", "list"),
    }
)
"""Commands that a read-only context allows. The context refuses all others, so a new command is
refused until someone adds it here."""


def cluster_options(command: F) -> F:
    """Add the options that name a cluster: ``-b``, ``--zookeeper``, ``--context`` and ``-F``.

    The command receives the cluster as ``cluster``. Without these options the environment, the
    selected context or the last ``logbus up`` names the cluster. An option --dir of the command
    (``directory``) names a cluster of this machine, to which no context applies. In the message of
    a LogbusError, names of settings become options of this command (``option_names``)."""

    @functools.wraps(command)
    def on_cluster(
        *args: Any,
        bootstrap_servers: str | None,
        zookeeper: str | None,
        context_name: str | None,
        client_config: str | None,
        **values: Any,
    ) -> Any:
        if context_name and (bootstrap_servers or zookeeper):
            raise click.UsageError("--context names the cluster; leave -b and --zookeeper out")
        if values.get("directory") is None:
            cluster = choose_cluster(bootstrap_servers, zookeeper, context_name, client_config)
        elif bootstrap_servers or zookeeper or context_name:
            raise click.UsageError(
                "--dir names a cluster of this machine; leave -b, --zookeeper and --context out"
            )
        else:
            cluster = ChosenCluster()
        if cluster.context is not None:
            _require_reading(cluster.context)
        with using_security(client_config, cluster.context):
            try:
                return command(*args, cluster=cluster, **values)
            except LogbusError as error:
                from broker_lite.cli.option_names import spellings_of, spelt

                said = spellings_of(click.get_current_context().command)
                error.message = spelt(error.message, said)
                raise

    with_file = click.option(
        "-F",
        "--client-config",
        type=click.Path(exists=True, dir_okay=False),
        help="File with bootstrap.servers, security.protocol, sasl.username, … Default: "
        "LOGBUS_CLIENT_CONFIG.",
    )(cast(F, on_cluster))
    with_context = click.option(
        "--context",
        "context_name",
        type=CONTEXT,
        metavar="NAME",
        help="A cluster of 'logbus context'. Default: LOGBUS_CONTEXT, or the selected one.",
    )(with_file)
    with_zookeeper = click.option(
        "--zookeeper", metavar="HOST:PORT/CHROOT", help="Find the brokers in ZooKeeper."
    )(with_context)
    return click.option(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        help="Bootstrap brokers. Default: --context, the file of -F, LOGBUS_CONTEXT, "
        "LOGBUS_BOOTSTRAP_SERVERS, LOGBUS_ZOOKEEPER, the file of LOGBUS_CLIENT_CONFIG, the "
        "selected context, or the cluster that 'logbus up' last started.",
    )(with_zookeeper)


@contextlib.contextmanager
def using_security(client_config: str | None, chosen: Context | None) -> Iterator[None]:
    """Run a block whose clients use the security settings of the file ``client_config`` (-F), else
    of the context ``chosen``, else of the environment."""
    if client_config is None and chosen is None:
        yield
        return
    from broker_lite.client.client_config import chosen_security, security_of_file

    if client_config is not None:
        security = security_of_file(Path(client_config))
    else:
        assert chosen is not None
        security = chosen.security()
    with chosen_security(security):
        yield


def _require_reading(chosen: Context) -> None:
    """Raise ReadOnlyContextError if the context is read-only and the running command may change its
    cluster."""
    if not chosen.read_only:
        return
    context = click.get_current_context()
    words = tuple(context.command_path.split()[1:])
    # Two of the READING commands may write: a consumer with a group commits offsets, and a console
    # makes changes unless it is read-only.
    may_write = (words == ("consume",) and context.params.get("group")) or (
        words == ("console",) and not context.params["read_only"]
    )
    if words not in READING or may_write:
        raise ReadOnlyContextError(
            f"context {chosen.name!r} is read-only, and 'logbus {' '.join(words)}' may change its "
            "cluster. Name the cluster with -b, or use another context"
        )


def settings_option(command: F) -> F:
    """Add ``-X`` for client settings without an option of their own."""
    return click.option(
        "-X",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any other client setting; conf/client.conf lists them.",
    )(command)


def bootstrap(cluster: ChosenCluster) -> str:
    """Return the brokers' addresses. Raises NoClusterError if nothing names a cluster."""
    from broker_lite.client import discovery

    return discovery.resolve(cluster.bootstrap_servers, cluster.zookeeper)


def open_admin(cluster: ChosenCluster) -> Admin:
    """Return an admin client for the cluster; the caller closes it. So that commands start fast,
    this function does not import pyarrow, and imports kazoo only for --zookeeper."""
    from broker_lite.client.administration.admin import Admin

    return Admin(bootstrap(cluster), client_id="logbus-cli")


def found_topic(
    view: ClusterView,
    name: str,
    *,
    creates: bool = True,
    user: str = "",
    operation: Operation = Operation.DESCRIBE,
) -> TopicMetadata:
    """Return the metadata of the topic ``name``.

    Raises UnknownTopicOrPartitionError if ``view`` lacks the topic. The message suggests topics
    with similar names, else the command that creates the topic, or with ``creates`` False the
    command that lists topics. With ``user``, the name of the logged-in user, the message also has
    the command that allows ``operation``."""
    topic = view.topics.get(name)
    if topic is not None and topic.error is None:
        return topic
    if topic is not None and not isinstance(topic.error, UnknownTopicOrPartitionError):
        assert topic.error is not None
        raise topic.error
    known = [other for other, facts in view.topics.items() if facts.error is None]
    near = difflib.get_close_matches(name, known, n=3)
    if near:
        hint = f"; did you mean {', '.join(near)}?"
    elif creates:
        hint = f"; create it with: logbus topic create {shlex.quote(name)}"
    else:
        hint = "; see: logbus topic list"
    if user:
        hint += f"; {cure(user, operation, ResourceKind.TOPIC, name)}"
    raise UnknownTopicOrPartitionError(
        f"topic {name!r} does not exist, or {f'User:{user}' if user else 'you'} may not see it"
        f"{hint}"
    )


def chosen_partitions(topic: TopicMetadata, numbers: Collection[int]) -> list[TopicPartition]:
    """Return the partitions of ``topic`` with these numbers; all if there are no numbers."""
    there = [partition.partition for partition in topic.partitions]
    for number in numbers:
        if number not in there:
            raise click.BadParameter(
                f"topic {topic.name!r} has partitions 0 to {len(there) - 1}, not {number}",
                param_hint="--partition",
            )
    return [
        TopicPartition(topic.name, number) for number in there if not numbers or number in numbers
    ]


def key_values(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Return ``k=v`` arguments as a mapping. Raises click.BadParameter for anything else."""
    return dict(named_values(pairs, option))


def named_values(pairs: tuple[str, ...], option: str) -> list[tuple[str, str]]:
    """Return ``k=v`` arguments as pairs. Raises click.BadParameter for anything else."""
    values = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=option)
        values.append((key, value))
    return values


def name_pattern(regex: str | None, option: str = "--regex") -> re.Pattern[str]:
    """Return the compiled pattern ``regex``, which callers match against whole names. If None,
    every name matches. Raises click.BadParameter for an invalid pattern."""
    try:
        # The name of a group may have line ends, which a dot matches only with DOTALL.
        return re.compile(regex or ".*", re.DOTALL)
    except re.error as error:
        raise click.BadParameter(
            f"{regex!r} is not a regular expression: {error}", param_hint=option
        ) from None
