"""Rehearsed failures: a group under load is hurt on purpose, and a ledger says whether a promise
was broken.

It stands beside the server and drives it from outside, as an operator would (signals, HTTP, NATS,
commands). It must never reach into a server, and nothing here decides what is right but
``judge.py`` (``docs/drills.md``).
"""
