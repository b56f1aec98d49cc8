"""The web console: HTML pages, and the same data as JSON.

A thread, the sampler (``observing.sampler``), reads the state of the whole cluster every few
seconds. Each result is a reading. Pages show the newest reading, and read further data, such as
records and settings, with the public client.

``logbus console`` runs the console in a process of its own. ``service`` starts the server,
``application`` routes addresses to pages, ``gate`` checks each request, ``sessions`` logs users in,
``pages/`` returns the data of each page, and ``templates/`` renders them."""
