"""Monitoring over HTTP: read-only views of a running server."""
