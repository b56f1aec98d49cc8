"""Convert requests and responses of Kafka's wire protocol to bytes and back, without I/O.

A frame is the bytes of one request or response, after a length of four bytes. PROTOCOL.md describes
the protocol. Read the modules in this order: ``primitives``, ``frame``, ``api``, then the rest. The
code of ``produce`` and ``fetch`` is written by hand, for clients and brokers. The code of ``calls``
is written by hand too, for the client's other requests. For these requests a broker uses
``tables``, which converts messages by the tables of kafka-python's ``kafka.protocol``. Only the
broker imports ``tables``.
"""
