"""Simulated surroundings: a disk that loses power honestly, and histories that die at every storage
call.
"""
