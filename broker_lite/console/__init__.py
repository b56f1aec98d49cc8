"""The web console: HTML pages, and the same data as JSON. It reads the cluster through one sampler
and the public client.

``logbus console`` runs the console in a process of its own. ``service`` starts the server,
``application`` routes addresses to pages, ``gate`` checks each request, ``sessions`` logs users in,
``pages/`` returns the data of each page, and ``templates/`` renders them.
"""
