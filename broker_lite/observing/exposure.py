"""Judge by the settings of the brokers whether other users can use a cluster without a login, and
whether its ZooKeeper servers have a known vulnerability. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from broker_lite.net.loopback import is_loopback
from broker_lite.observing.verdict import Cause

ZOOKEEPER_MIN = (3, 9, 5)
"""Lowest version of ZooKeeper that checks no certificate by reverse DNS (CVE-2026-24281)."""

BrokerSettings = Mapping[int, Mapping[str, str]]
"""The settings of brokers, by broker id and setting name."""

_OPEN: Mapping[str, Callable[[str], bool]] = {
    "authorizer": lambda value: value != "enforce",
    "listeners.insecure.allow": lambda value: value == "true",
    "zookeeper.auth.file": lambda value: not value,
}
"""The settings that protect a cluster, each with a function that returns whether a value leaves the
cluster usable without a login."""


def exposure_cause(settings: BrokerSettings, hosts: Collection[str], accounts: int) -> Cause | None:
    """Return a cause that names the settings which let other machines or other accounts use the
    cluster without a login; None if they cannot.

    ``hosts`` are the advertised hosts of the brokers. ``accounts`` is the number of other people's
    user accounts on this machine. If all hosts are loopback and there are no such accounts, no
    other user can reach the cluster."""
    if not all(map(is_loopback, hosts)):
        users, cure = "other machines", "follow 'Secure several machines' in the documentation"
    elif accounts:
        users = f"{accounts} other account{'s' if accounts > 1 else ''} of this machine"
        cure = "stop the cluster (logbus down), then start it with: logbus up --secure"
    else:
        return None
    brokers_by_setting: dict[str, list[int]] = {}
    for key, is_open in _OPEN.items():
        for broker_id, own in sorted(settings.items()):
            value = own.get(key, "")
            if is_open(value):
                brokers_by_setting.setdefault(f"{key}={value or '(empty)'}", []).append(broker_id)
    if not brokers_by_setting:
        return None
    rows = [
        text if len(ids) == len(settings) else f"{text} (broker {', '.join(map(str, ids))})"
        for text, ids in brokers_by_setting.items()
    ]
    return Cause("warning", "access", f"open to {users}: {', '.join(rows)}", cure)


def zookeeper_cause(host: str, version: tuple[int, ...], *, has_tls: bool) -> Cause | None:
    """Return a cause for a warning if a ZooKeeper server has a version before ``ZOOKEEPER_MIN``,
    else None.

    A server on a loopback address without TLS gives no warning: the vulnerability is in the check
    of certificates, which needs TLS."""
    if version >= ZOOKEEPER_MIN or (is_loopback(host) and not has_tls):
        return None
    lowest = ".".join(map(str, ZOOKEEPER_MIN))
    text = f"{host} runs {'.'.join(map(str, version))}, before {lowest} (CVE-2026-24281)"
    return Cause("warning", "ZooKeeper", text, f"upgrade ZooKeeper to {lowest} or later")
