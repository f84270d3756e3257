"""What a start reads, judges, mends and refuses of the files that it finds."""
