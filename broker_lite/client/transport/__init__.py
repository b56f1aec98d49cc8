"""The client's network I/O: connections to brokers, and the shells that send requests over them.

An operation is a generator that yields steps, such as a request to send, which a shell carries out.
In reading order:

- ``steps``: the steps of an operation, and the encoding of requests
- ``connection``: one non-blocking connection
- ``connections``: the connections of a shell, by broker and lane (a name for each purpose)
- ``pool``: the shell on the calling thread, which borrows connections
- ``reactor``: the shell on a background thread
- ``loop``: the shell on an asyncio event loop, the only module here that imports asyncio
- ``login``, ``access_tokens``: the SASL login on a connection
- ``received_buffers``: a pool of buffers for received bytes"""
