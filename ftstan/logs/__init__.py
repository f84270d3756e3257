"""Where log lines go: descriptors, files, syslog, and the thread that writes them so that nobody waits for a log."""
