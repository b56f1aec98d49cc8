"""The handlers of requests, one module for each API. ``server/dispatch.py`` maps API keys to them.

Most are ``async def handle(parts, request, message) -> response``, with messages of the package
``wire``. The handlers of Produce and Fetch are plain functions that answer by callback, which saves
a task for each request."""
