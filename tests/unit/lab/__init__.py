"""The lab's own book-keeping."""
