"""Hostile input, by the thousand: whatever arrives, the server answers or ignores it, and goes
on.
"""
