"""The handlers of requests, one module for each API. ``server/dispatch.py`` maps API keys to them.

Most handlers are ``async def handle(parts, request, message) -> response``. ``message`` and the
response are generated messages of the package ``wire``. The handlers of Produce and Fetch are plain
functions that answer by callback, which saves a task for each request.
"""
