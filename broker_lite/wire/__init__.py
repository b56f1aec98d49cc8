"""Conversion of frames to messages and back: Kafka's wire protocol, without I/O. Start with
PROTOCOL.md.

Order of reading: ``primitives``, ``frame``, ``api``, then ``produce`` and ``fetch`` (both sides,
coded by hand), ``calls`` (the client's other requests, coded by hand) and ``tables`` (the broker's
other requests, from a library's message tables; only the broker imports it).
"""
