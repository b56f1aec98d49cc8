"""Connections of clients and other brokers: listening, framing, order of answers. Loop thread.

A ``Connection`` hands each request to the dispatcher, with the ``Session`` of its client.
"""
