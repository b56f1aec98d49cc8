"""``logbus acl``: access control lists, and why a request is allowed or denied."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from broker_lite.cli import output
from broker_lite.cli.context import cluster_options, open_admin
from broker_lite.cli.nouns import Noun
from broker_lite.client.administration import acls
from broker_lite.errors import InvalidConfigError
from broker_lite.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
    canonical_host,
    check_acl,
)
from broker_lite.security.authorizer import AclIndex

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin

F = TypeVar("F", bound=Callable[..., Any])
OPERATIONS = [each.name.lower() for each in Operation if each is not Operation.ANY]
EXIT_DENIED = 1


@click.group(cls=Noun)
def acl() -> None:
    """Access control lists: who may do what."""


def resource_options(command: F) -> F:
    """Add the options that name one resource; the command receives it as ``resource``."""

    @functools.wraps(command)
    def named(
        topic: str | None,
        group: str | None,
        transactional_id: str | None,
        cluster: bool,
        **rest: Any,
    ) -> Any:
        given = {
            ResourceKind.TOPIC: topic,
            ResourceKind.GROUP: group,
            ResourceKind.TRANSACTIONAL_ID: transactional_id,
            ResourceKind.CLUSTER: CLUSTER_NAME if cluster else None,
        }
        chosen = [(kind, name) for kind, name in given.items() if name is not None]
        if len(chosen) != 1:
            raise click.UsageError("give one of --topic, --group, --transactional-id, --cluster")
        return command(resource=chosen[0], **rest)

    for option in (
        click.option("--cluster", is_flag=True, help="The cluster."),
        click.option("--transactional-id", help="Transactional id; '*': all."),
        click.option("--group", help="Consumer group; '*': all."),
        click.option("--topic", help="Topic; '*': all."),
    ):
        named = option(named)
    return named  # type: ignore[return-value]


def entry_options(command: F) -> F:
    """Add principal, operations and host, and whether a name is a prefix and the ACL a denial."""
    for decorate in (
        click.option("--deny", is_flag=True, help="Deny the operations; denials win."),
        click.option("--prefix", is_flag=True, help="All resources whose name begins so."),
        click.option(
            "--host", default=WILDCARD, show_default=True, help="IP address of the client."
        ),
        click.argument(
            "operations",
            nargs=-1,
            required=True,
            type=click.Choice(OPERATIONS, case_sensitive=False),
        ),
        click.argument("principal"),
    ):
        command = decorate(command)
    return command


def _acls(
    principal: str,
    operations: tuple[str, ...],
    resource: tuple[ResourceKind, str],
    *,
    host: str,
    prefix: bool,
    deny: bool,
) -> list[Acl]:
    kind, name = resource
    pattern = Pattern(kind, PatternType.PREFIXED if prefix else PatternType.LITERAL, name)
    permission = Permission.DENY if deny else Permission.ALLOW
    found = [
        Acl(pattern, Entry(_principal(principal), canonical_host(host), operation, permission))
        for operation in (Operation[each.upper()] for each in operations)
    ]
    for each in found:
        check_acl(each)
    return found


def _principal(name: str) -> str:
    return name if ":" in name else f"User:{name}"


@acl.command("list")
@click.option("--principal", help="Only the ACLs of this user.")
@cluster_options
@output.output_option
def list_acls(
    principal: str | None, bootstrap_servers: str | None, zookeeper: str | None, form: str | None
) -> None:
    """List access control lists."""
    wanted = AclFilter(principal=None if principal is None else _principal(principal))
    with open_admin(bootstrap_servers, zookeeper) as admin:
        found = admin.run(lambda cluster, ms: acls.describe_acls(cluster, wanted, ms))
    output.show(map(_row, found), form)
    if not found:
        output.say("there are no ACLs; add one with: logbus acl add")


@acl.command()
@entry_options
@resource_options
@cluster_options
@output.output_option
def add(
    principal: str,
    operations: tuple[str, ...],
    resource: tuple[ResourceKind, str],
    bootstrap_servers: str | None,
    zookeeper: str | None,
    form: str | None,
    **options: Any,
) -> None:
    """Allow PRINCIPAL the OPERATIONS, or deny them with --deny.

    Example: logbus acl add alice read describe --topic events
    """
    wanted = _acls(principal, operations, resource, **options)
    with open_admin(bootstrap_servers, zookeeper) as admin:
        admin.run(lambda cluster, ms: acls.create_acls(cluster, wanted, ms))
    output.show(map(_row, wanted), form)


@acl.command()
@entry_options
@resource_options
@cluster_options
@output.output_option
def delete(
    principal: str,
    operations: tuple[str, ...],
    resource: tuple[ResourceKind, str],
    bootstrap_servers: str | None,
    zookeeper: str | None,
    form: str | None,
    **options: Any,
) -> None:
    """Delete the ACLs that 'add' with the same arguments made."""
    filters = [
        AclFilter(*pattern, entry.principal, entry.host, entry.operation, entry.permission)
        for pattern, entry in _acls(principal, operations, resource, **options)
    ]
    with open_admin(bootstrap_servers, zookeeper) as admin:
        found = admin.run(lambda cluster, ms: acls.delete_acls(cluster, filters, ms))
    output.show(map(_row, found), form)
    if not found:
        output.say("no such ACL exists; list them with: logbus acl list")


@acl.command()
@click.argument("principal")
@click.argument("operation", type=click.Choice(OPERATIONS[1:], case_sensitive=False))
@click.option("--host", default="127.0.0.1", show_default=True, help="IP address of the client.")
@resource_options
@cluster_options
@output.output_option
def check(
    principal: str,
    operation: str,
    host: str,
    resource: tuple[ResourceKind, str],
    bootstrap_servers: str | None,
    zookeeper: str | None,
    form: str | None,
) -> None:
    """Say whether PRINCIPAL may do OPERATION, and which ACL decides.

    The exit code is 0 if it is allowed, else 1.
    """
    kind, name = resource
    user, verb = _principal(principal), Operation[operation.upper()]
    with open_admin(bootstrap_servers, zookeeper) as admin:
        index, supers = _index(admin)
    allowed, decider = index.decide(user, canonical_host(host), verb, kind, name)
    if decider is not None:
        why = str(decider)
    elif user in supers:
        why = "a super user (super.users)"
    else:
        why = "no ACL applies (allow.everyone.if.no.acl.found)" if allowed else "no ACL allows it"
    output.show_one({"allowed": allowed, "because": why}, form)
    if not allowed:
        raise click.exceptions.Exit(EXIT_DENIED)


def _index(admin: Admin) -> tuple[AclIndex, frozenset[str]]:
    """Return the ACLs with a broker's options, and its super users."""
    found = admin.run(lambda cluster, ms: acls.describe_acls(cluster, AclFilter(), ms))
    broker_id = min(admin.cluster(()).brokers)
    (settings,) = admin.describe_configs(brokers=[broker_id]).values()
    texts = {key: settings[key].value or "" for key in ("super.users", _ALLOW) if key in settings}
    if len(texts) < 2:
        raise InvalidConfigError(f"broker {broker_id} does not tell super.users and {_ALLOW}")
    supers = frozenset(filter(None, (each.strip() for each in texts["super.users"].split(";"))))
    entries: dict[Pattern, frozenset[Entry]] = {}
    for pattern, entry in found:
        entries[pattern] = entries.get(pattern, frozenset()) | {entry}
    return AclIndex(entries, super_users=supers, allow_if_none=texts[_ALLOW] == "true"), supers


_ALLOW = "allow.everyone.if.no.acl.found"


def _row(each: Acl) -> dict[str, Any]:
    (kind, pattern_type, name), (principal, host, operation, permission) = each
    return {
        "principal": principal,
        "permission": permission.name.lower(),
        "operation": operation.name.lower(),
        "resource": kind.name.lower(),
        "name": name,
        "pattern": pattern_type.name.lower(),
        "host": host,
    }
