"""A replicated cluster: one JetStream stream is the log, each node fills a file store from it.

No code here elects by clocks or votes: whoever appends a leader record behind the last entry of the
log leads, and every later append names the entry that it follows. See ``docs/clustering.md``.
"""
