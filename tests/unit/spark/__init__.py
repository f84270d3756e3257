"""The log as data."""
