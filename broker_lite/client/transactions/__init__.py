"""Transactions of a producer: records and group offsets that become visible together, or never.

``machine`` is a state machine without I/O: it receives events, such as a call of ``commit``, and
returns effects, such as requests, which ``runner`` carries out. Both modules serve the blocking
(``producer``) and the asyncio producer (``aio_producer``). ``attempt`` and ``batch_end`` serve
Spark's exactly-once sink."""
