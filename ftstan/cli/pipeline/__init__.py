"""``ftstan-pipeline``: the message log as data, on Spark (``docs/pipeline.md``).

One module a command.
"""
