"""Operations that all clients share, as generators over ``transport.steps``.

``cluster``: partition leaders and the retry policy. ``requests``: metadata, log offsets, producer
ids. ``group_requests``: requests to a group's coordinator. ``fetches``: fetch requests. ``bounds``:
checks of arguments. No I/O, no clock: a shell or the simulator runs the steps.
"""
