"""What STAN means."""
