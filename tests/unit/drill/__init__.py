"""Drills, their ledgers and judges."""
