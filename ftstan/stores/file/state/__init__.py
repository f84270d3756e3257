"""Everything of a file store that is no message: clients, subscriptions, server, and what the next
start is told.
"""
