"""The words of the larger commands of ``ftstanctl``, apart from their work: help loads no more than
these.
"""
