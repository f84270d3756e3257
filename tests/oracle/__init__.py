"""Independent judges: written from the documents alone, sharing no code with the package they
judge.
"""
