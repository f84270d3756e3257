"""Pages say what is true."""
