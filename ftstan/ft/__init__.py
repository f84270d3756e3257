"""Who may write: the store lock, the epoch, heartbeats, and the loop of a standby.

The modules here decide; they own no socket and no thread. ``docs/ft-argument.md`` says why this is
safe.
"""
