"""Replicas on this broker: appends, fetches, flushes, and the shell of ``replication``.

``replica_manager`` finds a replica and carries out the effects of its state machine; ``disk`` runs
what may block; ``replica_fetcher`` and ``follower_fetch`` are the two ends of replication.
"""
