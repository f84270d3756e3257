"""Real server processes: killed, stopped, paused and fenced."""
