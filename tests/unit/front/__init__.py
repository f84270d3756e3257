"""Links to NATS, and the child process."""
