"""One module per API; ``server/dispatch.py`` is the table that names them all.

Administrative handlers are ``async def handle(parts, request, message) -> response`` over table
messages. Produce and fetch are plain functions that answer by callback: no task per request.
"""
