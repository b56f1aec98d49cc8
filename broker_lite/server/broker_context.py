"""The parts of the broker that request handlers need, in one immutable object.

Handlers run on the event loop's thread and may block it for 5 ms at most; longer work runs on the
threads of the field ``disk``. This module imports neither handlers nor the listener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_lite.config import BrokerConfig
from broker_lite.model import Endpoint
from broker_lite.server.audit import NO_AUDIT, AuditLog
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.peers import BrokerCalls
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.coordinators.group_transactions import GroupTransactions
from broker_lite.server.coordinators.transaction_coordinator import TransactionCoordinator
from broker_lite.server.coordinators.transaction_verifier import TransactionVerifier
from broker_lite.server.descriptors import Descriptors
from broker_lite.server.metrics import Histogram, Metrics
from broker_lite.server.network.access import Authorizer
from broker_lite.server.network.logins import Logins
from broker_lite.server.network.quotas import Quotas
from broker_lite.server.partitions.disk import Disk
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.storage.manager import LogManager


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The parts of the broker that handlers need.

    ``endpoint`` is the address for other brokers; ``listeners`` has the address of each
    listener."""

    config: BrokerConfig
    clock: Clock
    registry: Registry
    replicas: ReplicaManager
    logs: LogManager
    disk: Disk
    metrics: Metrics
    endpoint: Endpoint
    groups: GroupCoordinator
    calls: BrokerCalls
    coordinator_epochs: CoordinatorEpochs
    group_transactions: GroupTransactions
    verifier: TransactionVerifier
    transactions: TransactionCoordinator
    listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    fetch_waits: Histogram = field(default_factory=Histogram)
    logins: Logins = field(default_factory=Logins)
    authorizer: Authorizer = field(default_factory=Authorizer)
    audit: AuditLog = NO_AUDIT
    quotas: Quotas = field(default_factory=Quotas)
    descriptors: Descriptors | None = None

    @property
    def broker_id(self) -> int:
        return self.config.broker_id

    def cluster_id(self) -> str:
        """Return the cluster id, which the broker read from ZooKeeper at its start."""
        return self.registry.snapshot.cluster_id
