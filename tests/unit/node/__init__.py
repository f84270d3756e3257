"""One server's life."""
