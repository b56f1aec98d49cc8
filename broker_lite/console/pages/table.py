"""The table of the console's pages: for each page its address, its template, and the function that
returns its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker_lite.console.page_request import Data, PageRequest
from broker_lite.console.pages import (
    access,
    brokers,
    groups,
    messages,
    overview,
    topics,
    transactions,
)


class Page(NamedTuple):
    """A page of the console. ``section`` is its entry in the navigation."""

    path: str
    template: str
    section: str
    make: Callable[[PageRequest], Data]


PAGES = (
    Page("/", "overview", "overview", overview.overview),
    Page("/brokers", "brokers", "brokers", brokers.brokers),
    Page("/brokers/{broker}", "broker", "brokers", brokers.broker),
    Page("/topics", "topics", "topics", topics.topics),
    Page("/topics/{topic}/messages", "topic_messages", "topics", messages.messages),
    Page("/topics/{topic}/partitions", "topic_partitions", "topics", topics.partitions),
    Page("/topics/{topic}/settings", "topic_settings", "topics", topics.settings),
    Page("/topics/{topic}/groups", "topic_groups", "topics", topics.groups),
    Page("/groups", "groups", "groups", groups.groups),
    Page("/groups/{group}", "group", "groups", groups.group),
    Page("/transactions", "transactions", "transactions", transactions.transactions),
    Page("/users", "users", "users", access.users),
    Page("/acls", "acls", "acls", access.acls),
)

SECTIONS = (
    ("overview", "/", "Overview"),
    ("brokers", "/brokers", "Brokers"),
    ("topics", "/topics", "Topics"),
    ("groups", "/groups", "Groups"),
    ("transactions", "/transactions", "Transactions"),
)
SECURED_SECTIONS = (("users", "/users", "Users"), ("acls", "/acls", "Access control"))
"""Entries of the navigation (key, address and label) that follow those in ``SECTIONS`` if the
brokers demand logins."""
