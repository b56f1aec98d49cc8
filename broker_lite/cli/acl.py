"""``logbus acl``: access control lists, and why a request is allowed or denied."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options, if_exists_option
from broker_lite.cli.completion import GROUP, TOPIC
from broker_lite.cli.context import Command, cluster_options, open_admin
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.nouns import Noun
from broker_lite.client.administration import acls, users
from broker_lite.errors import (
    DuplicateResourceError,
    InvalidConfigError,
    LogbusError,
    ResourceNotFoundError,
)
from broker_lite.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    ResourceKind,
    canonical_host,
    check_host,
)
from broker_lite.security.authorizer import AclIndex
from broker_lite.security.written_acls import (
    OPERATION_WORDS,
    acl_of_words,
    filter_of,
    new_acl_of_words,
    principal_of,
    words_of,
)

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin

EXIT_DENIED = 1


@click.group(cls=Noun)
def acl() -> None:
    """Access control lists: who may do what.

    \b
    Examples:
      logbus acl add alice read describe --topic events
      logbus acl list
      logbus acl check alice write --topic events
    """


def resource_options(command: Command) -> Command:
    """Add --topic, --group, --transactional-id and --cluster to a command, exactly one of which
    must be given. The command receives the kind and the name of the resource as ``resource``."""

    @functools.wraps(command)
    def named(
        topic: str | None,
        group: str | None,
        transactional_id: str | None,
        cluster: bool,
        **rest: Any,
    ) -> Any:
        names = {
            ResourceKind.TOPIC: topic,
            ResourceKind.GROUP: group,
            ResourceKind.TRANSACTIONAL_ID: transactional_id,
            ResourceKind.CLUSTER: CLUSTER_NAME if cluster else None,
        }
        chosen = [(kind, name) for kind, name in names.items() if name is not None]
        if len(chosen) != 1:
            raise click.UsageError("give one of --topic, --group, --transactional-id, --cluster")
        return command(resource=chosen[0], **rest)

    for option in (
        click.option("--cluster", is_flag=True, help="The cluster itself, as a resource."),
        click.option("--transactional-id", help="Transactional id; '*': all."),
        click.option("--group", type=GROUP, help="Consumer group; '*': all."),
        click.option("--topic", type=TOPIC, help="Topic; '*': all."),
    ):
        named = option(named)
    return named


def entry_options(command: Command) -> Command:
    """Add the parts of an ACL to a command: the arguments PRINCIPAL and OPERATIONS, and the options
    --host, --prefix and --deny."""
    for decorate in (
        click.option("--deny", is_flag=True, help="Deny the operations; denials win."),
        click.option("--prefix", is_flag=True, help="All resources whose name has this prefix."),
        click.option(
            "--host", default=WILDCARD, show_default=True, help="IP address of the client."
        ),
        click.argument(
            "operations",
            nargs=-1,
            required=True,
            type=click.Choice(OPERATION_WORDS, case_sensitive=False),
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
    read: Callable[[Mapping[str, str]], Acl] = acl_of_words,
) -> list[Acl]:
    kind, name = resource
    words = {
        "principal": principal,
        "permission": "deny" if deny else "allow",
        "resource": kind.name,
        "name": name,
        "pattern": "prefixed" if prefix else "literal",
        "host": host,
    }
    return [read({**words, "operation": operation}) for operation in operations]


@acl.command("list")
@click.option("--principal", help="Only the ACLs of this user.")
@cluster_options
@output.output_option
def list_acls(principal: str | None, cluster: ChosenCluster, form: str | None) -> None:
    """List access control lists.

    \b
    Examples:
      logbus acl list
      logbus acl list --principal alice -o json
    """
    wanted = AclFilter(principal=None if principal is None else principal_of(principal))
    with open_admin(cluster) as admin:
        found = admin.run(acls.describe_acls, wanted)
        strangers = _strangers(admin, found)
    output.show(map(words_of, found), form)
    if strangers:
        output.say(
            f"no user exists for {', '.join(strangers)}: the ACLs apply only to certificates or "
            "tokens of that name"
        )
    if not found:
        output.say("there are no ACLs; add one with: logbus acl add")


@acl.command()
@entry_options
@resource_options
@click.option("--if-not-exists", is_flag=True, help="No error if all of these ACLs exist.")
@change_options
@cluster_options
@output.output_option
def add(
    principal: str,
    operations: tuple[str, ...],
    resource: tuple[ResourceKind, str],
    if_not_exists: bool,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
    **options: Any,
) -> None:
    """Allow PRINCIPAL the OPERATIONS, or deny them with --deny.

    \b
    Examples:
      logbus acl add alice read describe --topic events
      logbus acl add alice read --group team- --prefix
      logbus acl add '*' write --topic audit --deny --if-not-exists
    """
    wanted = _acls(principal, operations, resource, read=new_acl_of_words, **options)
    with open_admin(cluster) as admin:
        known = _known(admin)
        new = [each for each in wanted if each not in known]
        if not new and not if_not_exists:
            raise DuplicateResourceError(
                f"this ACL exists already: {wanted[0]}; with --if-not-exists this is no error"
            )
        if not change.is_wanted():
            new = []
        elif new:
            admin.run(acls.create_acls, new)
        strangers = _strangers(admin, wanted)
    output.show([words_of(each) | {"added": each in new} for each in wanted], form)
    if strangers:
        output.say(
            f"there is no user {principal!r} yet (logbus user add); until there is, the ACL "
            "applies only to certificates or tokens of that name"
        )


@acl.command()
@entry_options
@resource_options
@if_exists_option
@change_options
@cluster_options
@output.output_option
def delete(
    principal: str,
    operations: tuple[str, ...],
    resource: tuple[ResourceKind, str],
    if_exists: bool,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
    **options: Any,
) -> None:
    """Delete the ACLs that 'add' with the same arguments created.

    \b
    Examples:
      logbus acl delete alice read describe --topic events
      logbus acl delete '*' write --topic audit --deny --yes
    """
    wanted = _acls(principal, operations, resource, **options)
    filters = [filter_of(each) for each in wanted]
    with open_admin(cluster) as admin:
        known = _known(admin)
        found = [each for each in wanted if each in known]
        if not found and not if_exists:
            raise ResourceNotFoundError(
                f"there is no ACL {wanted[0]}; list the ACLs with: logbus acl list"
            )
        for each in found:
            output.say(str(each))
        if found and not change.is_wanted("Delete these ACLs?"):
            return
        deleted = admin.run(acls.delete_acls, filters)
    output.show(map(words_of, deleted), form)


@acl.command()
@click.argument("principal")
@click.argument("operation", type=click.Choice(OPERATION_WORDS[1:], case_sensitive=False))
@click.option("--host", default="127.0.0.1", show_default=True, help="IP address of the client.")
@resource_options
@cluster_options
@output.output_option
def check(
    principal: str,
    operation: str,
    host: str,
    resource: tuple[ResourceKind, str],
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Say whether PRINCIPAL may do OPERATION, and which ACL decides.

    The exit code is 0 if it is allowed, else 1.

    \b
    Examples:
      logbus acl check alice read --topic events
      logbus acl check alice read --group readers --host 10.0.0.7
    """
    kind, name = resource
    check_host(host)
    user, verb = principal_of(principal), Operation[operation.upper()]
    with open_admin(cluster) as admin:
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


def _strangers(admin: Admin, found: Iterable[Acl]) -> list[str]:
    """Return the principals in the ACLs ``found`` for which the cluster has no user.

    Return an empty list if the command may not list the users, or if the cluster has no users:
    clients then log in with certificates or tokens."""
    try:
        known = admin.run(users.describe_users, None)
    except LogbusError:
        return []
    names = {principal_of(WILDCARD), *(f"User:{each.name}" for each in known)}
    named = {entry.principal for _, entry in found}
    # A name with "=", such as CN=etl, comes from a certificate and needs no SCRAM user.
    return sorted(each for each in named - names if "=" not in each) if known else []


def _known(admin: Admin) -> set[Acl]:
    return set(admin.run(acls.describe_acls, AclFilter()))


def _index(admin: Admin) -> tuple[AclIndex, frozenset[str]]:
    """Return an index of the cluster's ACLs, which decides as a broker's authorizer does, and the
    super users. Both use super.users and allow.everyone.if.no.acl.found of the broker with the
    lowest id."""
    found = admin.run(acls.describe_acls, AclFilter())
    broker_id = min(admin.cluster(()).brokers)
    (settings,) = admin.describe_configs(brokers=[broker_id]).values()
    texts = {key: settings[key].value or "" for key in ("super.users", _ALLOW) if key in settings}
    if len(texts) < 2:
        raise InvalidConfigError(
            f"broker {broker_id} does not show super.users and {_ALLOW}, which 'acl check' needs. "
            "Grant this user describe_configs on the cluster. Brokers of Kafka never show them"
        )
    supers = frozenset(filter(None, (each.strip() for each in texts["super.users"].split(";"))))
    entries: dict[Pattern, frozenset[Entry]] = {}
    for pattern, entry in found:
        entries[pattern] = entries.get(pattern, frozenset()) | {entry}
    return AclIndex(entries, super_users=supers, allow_if_none=texts[_ALLOW] == "true"), supers


_ALLOW = "allow.everyone.if.no.acl.found"
