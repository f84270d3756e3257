"""Tests: statements about behaviour, from single functions to whole groups of nodes."""
