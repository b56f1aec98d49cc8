"""The requests that logbus's client sends, each in one version, and their responses, encoded and
decoded by code that is written by hand.

Each module has a group of related requests. Produce and Fetch are in ``wire.produce`` and
``wire.fetch``. Each request class encodes its body (``encode``) and decodes the response's body
(``decode``). ``wire.api.encode_call`` and ``decode_call`` add and remove the headers.

The parts of requests and responses are named tuples. Every Spark worker imports these modules, and
importing a named tuple takes an eighth of the time of a dataclass."""
