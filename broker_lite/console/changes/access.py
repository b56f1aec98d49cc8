"""Changes of users and access control lists."""

from __future__ import annotations

from broker_lite.client.administration import acls, users
from broker_lite.console.changes.change import ChangePlan, Field, Form
from broker_lite.console.page_request import PageRequest
from broker_lite.errors import InvalidRequestError
from broker_lite.model import ScramMechanism
from broker_lite.security.acls import WILDCARD
from broker_lite.security.written_acls import (
    OPERATION_WORDS,
    acl_of_words,
    filter_of,
    new_acl_of_words,
    words_of,
)

_KINDS = ("topic", "group", "transactional_id", "cluster")


def user_fields(_: PageRequest) -> tuple[Field, ...]:
    return (
        Field("name", "User", required=True, hint="An existing user gets the new password."),
        Field("password", "Password", "password", required=True),
    )


def add_user(request: PageRequest, form: Form) -> ChangePlan:
    name, password = form.get("name", "").strip(), form.get("password", "")
    if not name or not password:
        raise InvalidRequestError("the user or the password is empty; give both")

    def apply() -> str:
        chosen = list(ScramMechanism)
        request.bus.admin.run(users.set_password, name, password, chosen)
        return "/users"

    return ChangePlan((f"Sets the password of user {name!r}.",), apply)


def delete_user(request: PageRequest, _: Form) -> ChangePlan:
    name = request.path["user"]

    def apply() -> str:
        request.bus.admin.run(users.delete_user, name)
        return "/users"

    steps = (
        f"Deletes user {name!r}. The brokers close the user's connections.",
        "Access control lists that name the user stay.",
    )
    return ChangePlan(steps, apply, name, ("user", "delete", name, "--yes"))


def acl_fields(request: PageRequest) -> tuple[Field, ...]:
    """Return the form fields of an access control entry, filled with the values in the page's
    address."""
    given = request.query

    def choice(name: str, label: str, options: tuple[str, ...]) -> Field:
        pairs = tuple((option, option.replace("_", " ")) for option in options)
        return Field(name, label, "select", given.get(name, ""), options=pairs)

    return (
        Field("principal", "User", value=given.get("principal", ""), required=True),
        choice("permission", "Permission", ("allow", "deny")),
        choice("operation", "Operation", OPERATION_WORDS),
        choice("resource", "Resource", _KINDS),
        Field("name", "Name", value=given.get("name", ""), hint="'*': all resources of this type."),
        choice("pattern", "Pattern", ("literal", "prefixed")),
        Field("host", "Host", value=given.get("host", WILDCARD), hint="An IP address; '*': any."),
    )


def add_acl(request: PageRequest, form: Form) -> ChangePlan:
    acl = new_acl_of_words(form)

    def apply() -> str:
        request.bus.admin.run(acls.create_acls, [acl])
        return "/acls"

    return ChangePlan((f"Adds: {acl}",), apply)


def remove_acl(request: PageRequest, form: Form) -> ChangePlan:
    acl = acl_of_words(form)

    def apply() -> str:
        filters = [filter_of(acl)]
        removed = request.bus.admin.run(acls.delete_acls, filters)
        if not removed:
            raise InvalidRequestError(f"the ACL no longer exists: {acl}; reload the page")
        return "/acls"

    words = words_of(acl)
    resource = words["resource"].replace("_", "-")
    command = (
        *("acl", "delete", words["principal"], words["operation"], f"--{resource}"),
        *(() if resource == "cluster" else (words["name"],)),
        *(("--prefix",) if words["pattern"] == "prefixed" else ()),
        *(() if words["host"] == WILDCARD else ("--host", words["host"])),
        *(("--deny",) if words["permission"] == "deny" else ()),
        "--yes",
    )
    return ChangePlan((f"Removes: {acl}",), apply, acl.entry.principal, command)
