"""Players: recorded sessions of real servers played again, and clients with the habits of each
client library.
"""
