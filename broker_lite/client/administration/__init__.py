"""Administration of a cluster: topics, settings, groups, their lag, and replicas.

``admin`` is the blocking API. Each other module has the operations of the subject in its name. Some
modules do no I/O and evaluate responses: ``group_lag``, ``query_lease`` (the Spark query that
publishes to a group), ``health``, ``replica_plans``.
"""
