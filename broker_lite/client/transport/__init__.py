"""How requests reach brokers: what an operation may ask for, and the shells that carry it out.

In reading order: ``steps`` (what may be asked, and how a request becomes bytes and back),
``connection`` (one socket, never waits), ``connections`` (one to each endpoint and lane), and the
shells: ``blocking`` with a thread's ``Reactor`` and ``Pool``, ``loop`` on an event loop, the only
one that imports asyncio. ``rooms``: memory for what is received, used again.
"""
