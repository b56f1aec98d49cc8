"""The operations that a client may perform: all of them, as in Kafka without an authorizer.

Sent when a request asks for them (KIP-430). The numbers are those of Kafka's ``AclOperation``.
"""

from __future__ import annotations

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12

ON_TOPIC = frozenset(
    (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
)
ON_GROUP = frozenset((READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS))
ON_CLUSTER = frozenset(
    (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE)
)
