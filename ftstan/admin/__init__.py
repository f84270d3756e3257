"""What administrators say to running servers: protocol, signatures, keys, and who answers.

Imports no server.
"""
