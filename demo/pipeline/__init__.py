"""The pipeline's demo: ``make demo-pipeline`` or ``python -m demo.pipeline``.

A pair serves under small limits, so that slices roll and go to the archive; one is killed in the
middle. A Spark stream counts, the archive job archives, an audit looks, a replay and a restore
bring everything back. Every place must hold the same messages.
"""
