"""Who may write: the store lock, the epoch, heartbeats, and the loop of a standby.

The modules here decide; they own no socket and no thread. ``docs/ft.md`` holds the argument why this is safe.
"""
