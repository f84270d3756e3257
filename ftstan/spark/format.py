"""The name of the data source, for whoever registers it and for itself."""

from __future__ import annotations

from typing import Final

#: Name of the data source: ``spark.read.format("stan")``.
FORMAT: Final = "stan"
