"""Checks of storage."""
