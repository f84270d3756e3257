"""One module or package at a time; the folders are those of ``ftstan``."""
