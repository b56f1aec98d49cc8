"""Operators' questions and orders: topics, settings, groups, replicas, lag.

``admin`` is the face, blocking; ``admin_requests`` and ``replica_requests`` are its operations.
What is worked out of their answers is pure: ``group_lag``, ``query_lease`` (which Spark query
publishes to a group), ``health``, ``replica_plans``.
"""
