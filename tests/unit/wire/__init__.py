"""Bytes and messages."""
