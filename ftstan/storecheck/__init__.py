"""Can this directory carry a group's datastore?

Storage is tried in a scratch directory, before it matters.

``host.py`` tries what one host can try, ``peer.py`` what two can, ``integrity.py`` what survives
pulled plugs. All work below a hidden directory that they make and remove. They must never touch a
file of a datastore, and they need no server (``docs/check-store.md``).
"""
