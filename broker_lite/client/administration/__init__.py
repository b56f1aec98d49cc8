"""Administration of topics, settings, groups and replicas, and lag.

``admin`` is the blocking API; ``admin_requests`` and ``replica_requests`` are its operations. Pure
modules evaluate the answers: ``group_lag``, ``query_lease`` (the Spark query that publishes to a
group), ``health``, ``replica_plans``.
"""
