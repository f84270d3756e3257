"""What every other package stands on: errors, clock, storage calls, the log.

Imports nothing of the server.
"""
