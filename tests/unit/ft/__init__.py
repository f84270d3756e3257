"""Fencing and election."""
