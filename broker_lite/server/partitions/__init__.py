"""The partition replicas of this broker: append, flush, fetch and replicate their records.

``replica_manager`` finds replicas. ``replica`` carries out the operations (effects) that a
replica's state machine (package ``replication``) decides. ``disk`` runs operations that may block.
``replica_fetcher`` fetches from leaders, and ``follower_fetch`` answers followers.
"""
