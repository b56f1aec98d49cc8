"""The requests that logbus's client sends, each in one version, and their responses. The code that
encodes and decodes them is written by hand.

Each module has a group of related requests, and callers import from the module: ``cluster`` has
ApiVersions, Metadata and DescribeCluster; ``offsets`` has the lookups in a log; ``members`` has
the requests of a group's members; ``replicas`` has elections and reassignments. Produce and Fetch
are in ``wire.produce`` and ``wire.fetch``. Each request class encodes its body (``encode``) and
decodes the body of the response (``decode``). ``wire.api.encode_call`` and ``decode_call`` add and
remove the headers.

The parts of requests and responses are named tuples. Every Spark worker imports these modules, and
importing a named tuple takes an eighth of the time of a dataclass.
"""
