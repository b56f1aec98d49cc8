"""The table of all changes that the console offers."""

from __future__ import annotations

from broker_lite.console.changes import access, brokers, groups, topics, transactions
from broker_lite.console.changes.change import Change, Planner


def _deletion(noun: str, plan: Planner) -> Change:
    """Return the change that deletes a ``noun``: a topic, a group or a user."""
    return Change(
        path=f"/{noun}s/{{{noun}}}/delete",
        title=f"Delete the {noun}",
        verb=f"Delete {noun}",
        done=f"The {noun} is deleted.",
        plan=plan,
        is_dangerous=True,
    )


CHANGES = (
    Change(
        path="/topics/new",
        title="Create a topic",
        verb="Create topic",
        done="The topic is created.",
        fields=topics.create_fields,
        plan=topics.create,
    ),
    Change(
        path="/topics/{topic}/produce",
        title="Produce a record",
        verb="Produce",
        intro="Sends one record with acks=all.",
        done="The record is acknowledged.",
        fields=topics.produce_fields,
        plan=topics.produce,
    ),
    Change(
        path="/topics/{topic}/alter",
        title="Change a setting",
        verb="Change setting",
        done="The setting is changed.",
        fields=topics.alter_fields,
        plan=topics.alter,
    ),
    Change(
        path="/topics/{topic}/elect",
        title="Elect preferred leaders",
        verb="Elect",
        intro="Makes the first replica of each partition its leader again, where it is in sync.",
        done="The preferred leaders are elected.",
        plan=topics.elect,
    ),
    Change(
        path="/topics/{topic}/reassign",
        title="Move to other brokers",
        verb="Move",
        intro="The replicas are copied to these brokers; the old ones serve until that is done.",
        done="The move has begun.",
        fields=topics.reassign_fields,
        plan=topics.reassign,
        is_dangerous=True,
    ),
    Change(
        path="/topics/{topic}/trim",
        title="Delete old records",
        verb="Delete records",
        intro="Deletes records from the beginning of the log. They cannot be restored.",
        done="The records are deleted.",
        fields=topics.trim_fields,
        plan=topics.trim,
        is_dangerous=True,
    ),
    _deletion("topic", topics.delete),
    Change(
        path="/groups/{group}/move",
        title="Move offsets",
        verb="Move offsets",
        intro="Sets the offsets at which the group resumes. It must have no live member.",
        done="The offsets are moved.",
        fields=groups.move_fields,
        plan=groups.move,
        is_dangerous=True,
    ),
    _deletion("group", groups.delete),
    Change(
        path="/brokers/elect",
        title="Elect preferred leaders",
        verb="Elect",
        intro="Balances leadership after brokers were restarted.",
        done="The preferred leaders are elected.",
        plan=brokers.elect,
    ),
    Change(
        path="/brokers/{broker}/retire",
        title="Retire the broker",
        verb="Retire",
        done="The broker is retired.",
        plan=brokers.retire,
        is_dangerous=True,
    ),
    Change(
        path="/transactions/abort",
        title="End a hanging transaction",
        verb="End",
        intro="For a transaction that no coordinator will end.",
        done="The marker is written.",
        fields=transactions.fields,
        plan=transactions.abort,
        is_dangerous=True,
    ),
    Change(
        path="/users/add",
        title="Add a user",
        verb="Add user",
        done="The user can log in.",
        fields=access.user_fields,
        plan=access.add_user,
    ),
    _deletion("user", access.delete_user),
    Change(
        path="/acls/add",
        title="Add an access control entry",
        verb="Add entry",
        intro="Allows or denies one operation. Denials win.",
        done="Every broker enforces the entry.",
        fields=access.acl_fields,
        plan=access.add_acl,
    ),
    Change(
        path="/acls/remove",
        title="Remove an access control entry",
        verb="Remove entry",
        done="No broker enforces the entry any more.",
        fields=access.acl_fields,
        plan=access.remove_acl,
        is_dangerous=True,
    ),
)
DONE = {change.key: change.done for change in CHANGES}
"""The sentence that reports success, by the key of the change.

After a change, the address of the next page contains this key, and the page shows the sentence.
Anyone can send a user an address, so it must not contain the sentence itself."""
