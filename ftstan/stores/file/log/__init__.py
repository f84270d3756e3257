"""The messages of a channel on disk: slices, their indexes, their limits, purges, and exact
files.
"""
