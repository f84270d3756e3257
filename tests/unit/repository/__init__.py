"""The repository itself: its layers, its suite, what CI runs."""
