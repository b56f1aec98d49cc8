"""The web console: pages and their JSON twins over one sampler and the public client.

``logbus console`` runs it apart from the brokers. ``service`` starts it, ``application`` routes
the table of pages, ``gate`` checks each request, ``sessions`` logs users in, ``pages/`` returns the
data of a page, and ``templates/`` shows it.
"""
