"""Measurements: medians and ratios from one run, never assertions (``docs/benchmarks.md``)."""
