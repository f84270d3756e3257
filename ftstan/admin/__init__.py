"""What administrators say to running servers: the protocol, its signatures and keys, and who answers. Knows no server."""
