"""Administration of topics, settings, groups and replicas, and lag.

``admin`` is the blocking API, and the modules named for their subject have its operations. Some
modules do no I/O and evaluate responses: ``group_lag``, ``query_lease`` (the Spark query that
publishes to a group), ``health``, ``replica_plans``.
"""
