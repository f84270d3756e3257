"""Encryption at rest: payloads are encrypted before a store sees them, whichever kind it is."""
