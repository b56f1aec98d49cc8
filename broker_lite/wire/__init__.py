"""Convert requests and responses of Kafka's wire protocol to bytes and back, without I/O.

PROTOCOL.md describes the protocol. A frame is the bytes of one request or response, after a length
of four bytes. Read the modules in this order: ``primitives``, ``frame``, ``api``, then the rest.

The code of ``produce`` and ``fetch`` (for clients and brokers) is written by hand. The classes of
``calls`` (the client's other requests) declare their fields, which ``layout`` converts. For these
other requests a broker uses ``tables``, which converts messages by the tables of kafka-python's
``kafka.protocol``. Only the broker imports ``tables``."""
