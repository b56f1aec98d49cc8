"""One module per API; ``server/dispatch.py`` maps API keys to them.

Most handlers are ``async def handle(parts, request, message) -> response`` over generated messages.
Produce and fetch are plain functions that answer by callback, without a task per request.
"""
