"""Convert frames of Kafka's wire protocol to messages and back, without I/O.

PROTOCOL.md describes the protocol. Read the modules in this order: ``primitives``, ``frame``,
``api``, then ``produce`` and ``fetch`` (hand-written, for clients and brokers), ``calls``
(hand-written, the client's other requests) and ``tables``. ``tables`` converts the broker's other
requests with the message tables of a library, and only the broker imports it.
"""
