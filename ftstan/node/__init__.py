"""One server's life: start, recover, serve, stand by, hand over, stop.

It puts all others together.
"""
