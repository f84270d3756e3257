"""Stores, above all the one in files."""
