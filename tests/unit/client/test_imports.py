"""What a program loads with our client: nothing of the server, whose link it shares."""

from __future__ import annotations

import subprocess
import sys


def test_the_client_loads_neither_the_server_nor_heavy_libraries() -> None:
    code = "import sys, ftstan.client; print(*(name for name in sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = said.stdout.split()
    ours = {".".join(name.split(".")[1:3]) for name in loaded if name.startswith("ftstan.")}
    beside = {name for name in ours if name.partition(".")[0] not in {"client", "wire"}}
    assert beside == {"base", "base.errors", "nats", "nats.reconnecting", "version"}
    assert {"prometheus_client", "pyarrow", "pyspark", "rich"}.isdisjoint(loaded)
