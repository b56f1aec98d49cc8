"""The transport of requests to brokers: the steps of operations, and the shells that run them.

In reading order:

- ``steps``: the steps of an operation, and the encoding of requests
- ``connection``: one non-blocking connection
- ``connections``: the connections of a shell, by broker and lane
- ``blocking``: the shells ``Reactor``, with a thread, and ``Pool``, for calling threads
- ``loop``: the shell on an event loop, the only module that imports asyncio
- ``login``, ``access_tokens``: the login on a connection
- ``received_buffers``: the buffer pool of received bytes
"""
