"""The data of the pages about users and access control lists, for clusters whose brokers demand
logins."""

from __future__ import annotations

from broker_lite.client.administration.acls import describe_acls
from broker_lite.client.administration.users import describe_users
from broker_lite.console.lists import Column, listing
from broker_lite.console.page_request import Data, PageRequest
from broker_lite.security.acls import AclFilter
from broker_lite.security.written_acls import words_of

USERS = (Column("name", "User"), Column("mechanisms", "Logins"))
ACLS = (
    Column("principal", "Principal"),
    Column("permission", "Permission"),
    Column("operation", "Operation"),
    Column("resource", "Resource"),
    Column("name", "Name"),
    Column("pattern", "Pattern"),
    Column("host", "Host"),
)


def users(request: PageRequest) -> Data:
    credentials = request.admin.run(describe_users, None)
    rows = [
        {"name": user.name, "mechanisms": ", ".join(each.mechanism for each in user.credentials)}
        for user in credentials
    ]
    return {"users": listing(rows, USERS, request.query, sort="name")}


def acls(request: PageRequest) -> Data:
    entries = request.admin.run(describe_acls, AclFilter())
    rows = [words_of(acl) for acl in entries]
    return {"acls": listing(rows, ACLS, request.query, sort="principal", name="principal")}
