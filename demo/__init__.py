"""The demo: an FT pair under a real third-party client, killed and stopped under load, judged from
a ledger.

``python -m demo`` runs it. It drives ftstan from outside, as an operator would (command line,
signals, HTTP, NATS), and must never reach into the server.
"""
