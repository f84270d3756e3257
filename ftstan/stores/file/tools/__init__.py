"""What looks at a datastore, repairs it, and prepares it for an original server.

No server needs to run for it.
"""
