"""Handle the requests of one API in each module. ``server/dispatch.py`` maps API keys to modules.

Most handlers are ``async def handle(parts, request, message) -> response``. ``message`` and the
response are generated messages of ``wire``. The handlers of Produce and Fetch are plain functions
that answer by callback, without a task for each request.
"""
