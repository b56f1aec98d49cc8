"""The client's requests, one version each, by hand: import them from their family's module.

``cluster`` (ApiVersions, Metadata, DescribeCluster), ``topics``, ``configs``, ``offsets`` (what is
where in a log), ``groups`` and their ``members``, ``group_removal``, ``replicas`` (elections,
moves), ``producers``, ``log_dirs``. Produce and Fetch are in ``wire.produce`` and ``wire.fetch``.
``wire.api.encode_call`` and ``decode_call`` carry them. Rows are named tuples: importing such a
class costs an eighth of a dataclass, and every Spark worker imports them.
"""
