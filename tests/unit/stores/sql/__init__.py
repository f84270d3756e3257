"""The SQL store, on real servers."""
