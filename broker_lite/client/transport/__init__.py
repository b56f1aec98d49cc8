"""The transport of requests to brokers: the steps of operations, and the shells that run them.

In reading order: ``steps`` defines the steps and the encoding of requests. ``connection`` is one
non-blocking socket, ``connections`` one per endpoint and lane. The shells are ``blocking``
(``Reactor`` with a thread, and ``Pool``) and ``loop`` (an event loop, the only module that imports
asyncio). ``received_buffers`` is the buffer pool of received bytes.
"""
