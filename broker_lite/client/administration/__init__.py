"""Administration of a cluster: topics, settings, groups, their lag, and replicas.

``admin`` is the blocking API. Most other modules hold the operations (generators that yield
requests) for the subject in their name. Four only evaluate responses: ``group_lag``,
``query_lease`` (which Spark query publishes its progress to a group), ``health`` and
``replica_plans``."""
