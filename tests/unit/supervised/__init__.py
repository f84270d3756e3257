"""Nodes under supervisord."""
