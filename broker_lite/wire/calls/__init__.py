"""The client's requests, one version each, encoded and decoded by hand. Import them from the module
of their family.

``cluster`` (ApiVersions, Metadata, DescribeCluster), ``topics``, ``configs``, ``offsets`` (lookups
in a log), ``groups``, ``members``, ``group_removal``, ``replicas`` (elections, reassignments),
``producers``, ``log_dirs``. Produce and Fetch are in ``wire.produce`` and ``wire.fetch``.
``wire.api.encode_call`` and ``decode_call`` convert them to and from frames. Rows are named tuples,
because importing such a class costs an eighth of a dataclass, and every Spark worker imports them.
"""
