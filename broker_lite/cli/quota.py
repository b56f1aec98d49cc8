"""``logbus quota``: limit the bytes, the request time and other resources that a user, a client id
or an IP address may use at each broker."""

from __future__ import annotations

import functools
from typing import Any

import click

from broker_lite.cli import output
from broker_lite.cli.change import ChangeOptions, change_options, if_exists_option
from broker_lite.cli.context import Command, cluster_options, open_admin
from broker_lite.cli.contexts import ChosenCluster
from broker_lite.cli.nouns import Noun
from broker_lite.cli.numbers import Real
from broker_lite.client.administration import quotas
from broker_lite.errors import ResourceNotFoundError
from broker_lite.security.quotas import CLIENT_ID, DEFAULT, IP, KEYS, USER, Entity, entity_of

QUOTA_KEYS = list(dict.fromkeys(key for keys in KEYS.values() for key in keys))
DEFAULT_WORD = "*"
"""The name that means, on the command line, all users, client ids or addresses without a quota of
their own (Kafka's default entity)."""


@click.group(cls=Noun)
def quota() -> None:
    """Quotas: how much a client may use of each broker.

    \b
    Examples:
      logbus quota set producer_byte_rate 1048576 --user alice
      logbus quota list
    """


def entity_options(command: Command) -> Command:
    """Add --user, --client-id and --ip to a command, which receives the named clients as
    ``entity``."""

    @functools.wraps(command)
    def named(user: str | None, client_id: str | None, ip: str | None, **rest: Any) -> Any:
        names = {USER: user, CLIENT_ID: client_id, IP: ip}
        if not any(name is not None for name in names.values()):
            raise click.UsageError("name the limited clients: give --user, --client-id or --ip")
        entity = entity_of(
            (kind, DEFAULT if name == DEFAULT_WORD else name)
            for kind, name in names.items()
            if name is not None
        )
        return command(entity=entity, **rest)

    for option in (
        click.option("--ip", help="IP address; '*': each address without a quota of its own."),
        click.option(
            "--client-id", help="client.id; '*': each client id without a quota of its own."
        ),
        click.option("--user", help="User; '*': each user without a quota of its own."),
    ):
        named = option(named)
    return named


@quota.command("set")
@click.argument("key", type=click.Choice(QUOTA_KEYS))
@click.argument("value", type=Real())
@entity_options
@change_options
@cluster_options
@output.output_option
def set_quota(
    key: str,
    value: float,
    entity: Entity,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Limit the clients of --user, --client-id or --ip to VALUE per second at each broker, or
    for request_percentage to VALUE % of a core.

    \b
    Examples:
      logbus quota set producer_byte_rate 1048576 --user alice
      logbus quota set consumer_byte_rate 5000000 --client-id '*' --dry-run
    """
    row = _row(entity, key, value)
    with open_admin(cluster) as admin:
        if change.dry_run:
            before = admin.run(quotas.describe_quotas).get(entity, {}).get(key)
            said = "no quota" if before is None else f"{before:.15g}"
            said = f"{entity}: {key}: {said} -> {value:.15g}"
            output.report_change({**row, "set": False}, form, said)
        if not change.is_wanted():
            return
        admin.run(quotas.alter_quotas, entity, {key: value})
    output.report_change({**row, "set": True}, form, f"{entity}: {key}={value:.15g}")


@quota.command("list")
@cluster_options
@output.output_option
def list_quotas(cluster: ChosenCluster, form: str | None) -> None:
    """List all quotas.

    \b
    Examples:
      logbus quota list
      logbus quota list -o json
    """
    with open_admin(cluster) as admin:
        found = admin.run(quotas.describe_quotas)
    output.show(
        [
            _row(entity, key, value)
            for entity, values in found.items()
            for key, value in values.items()
        ],
        form,
    )
    if not found:
        output.say("there are no quotas; set one with: logbus quota set")


def _row(entity: Entity, key: str, value: float | None) -> dict[str, Any]:
    return {
        "user": _name(entity, USER),
        "client_id": _name(entity, CLIENT_ID),
        "ip": _name(entity, IP),
        "quota": key,
        "value": value,
    }


def _name(entity: Entity, entity_type: str) -> str | None:
    if entity_type not in entity.types:
        return None
    name = entity.name(entity_type)
    return DEFAULT_WORD if name is DEFAULT else name


@quota.command()
@click.argument("key", type=click.Choice(QUOTA_KEYS))
@entity_options
@if_exists_option
@change_options
@cluster_options
@output.output_option
def delete(
    key: str,
    entity: Entity,
    if_exists: bool,
    change: ChangeOptions,
    cluster: ChosenCluster,
    form: str | None,
) -> None:
    """Remove a quota.

    \b
    Examples:
      logbus quota delete producer_byte_rate --user alice
      logbus quota delete producer_byte_rate --user alice --if-exists --yes
    """
    with open_admin(cluster) as admin, output.ChangeReport(form) as report:
        value = admin.run(quotas.describe_quotas).get(entity, {}).get(key)
        if value is None:
            if not if_exists:
                raise ResourceNotFoundError(
                    f"{entity} has no quota {key}; list them with: logbus quota list"
                )
            row = {**_row(entity, key, None), "deleted": False}
            report.add(row, f"{entity} has no quota {key}")
        elif change.is_wanted(f"Remove {key}={value:.15g} of {entity}?"):
            admin.run(quotas.alter_quotas, entity, {key: None})
            row = {**_row(entity, key, value), "deleted": True}
            report.add(row, f"{entity}: {key} is removed")
