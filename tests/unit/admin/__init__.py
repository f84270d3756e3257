"""What operators ask of running servers."""
