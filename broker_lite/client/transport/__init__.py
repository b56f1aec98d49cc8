"""The client's network I/O: connections to brokers, and the shells that send requests over them.

An operation is a generator that yields steps, such as a request to send, which a shell carries out.
In reading order:

- ``steps``: the steps of an operation, and the encoding of requests
- ``connection``: one non-blocking connection
- ``connections``: the connections of a shell, by broker and lane (a name for each purpose)
- ``blocking``: two shells without asyncio. ``Reactor`` has a background thread; ``Pool`` lends
  connections to the threads that call it.
- ``loop``: the shell on an asyncio event loop, the only module here that imports asyncio
- ``login``, ``access_tokens``: the SASL login on a connection
- ``received_buffers``: a pool of buffers for received bytes"""
