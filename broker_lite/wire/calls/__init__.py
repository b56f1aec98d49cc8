"""The requests that logbus's client sends, each in one version, and their responses.

Each module has a group of related requests. Produce and Fetch are in ``wire.produce`` and
``wire.fetch``. A class declares the fields of its structure in the order of the protocol, and
``wire.layout`` encodes and decodes them. ``wire.api.encode_call`` and ``decode_call`` add and
remove the headers.

The parts of requests and responses are named tuples. Every Spark worker imports these modules, and
importing a named tuple takes an eighth of the time of a dataclass."""
