"""What packages are made from."""
