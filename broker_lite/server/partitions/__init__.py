"""Partition replicas on this broker: appends, fetches, flushes, and the I/O for ``replication``.

``replica_manager`` finds replicas; ``replica`` carries out the effects of their state machines.
``disk`` runs operations that may block. ``replica_fetcher`` and ``follower_fetch`` are the client
and server sides of replication.
"""
