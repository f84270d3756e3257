"""HTTP pages and metrics."""
