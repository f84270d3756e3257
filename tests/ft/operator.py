"""``ftstanctl ft`` as an operator types it, run in the test's own process."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftstan.cli import ctl
from tests.processes import CLUSTER, GROUP

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Said:
    """What one command answered."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its one line of JSON."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who asks one group of one NATS server; ``store`` is where its key lies."""

    url: str
    store: Path | None = None
    cluster: str = CLUSTER
    group: str = GROUP

    def ft(self, verb: str, *words: str) -> Said:
        """Run ``ftstanctl ft <verb>``."""
        # A busy machine must not turn a late answer into none.
        where = [
            "--server",
            self.url,
            "--cluster",
            self.cluster,
            "--group",
            self.group,
            "--timeout",
            "3",
        ]
        return run("ft", verb, *where, *words)

    def change(self, verb: str, *words: str) -> Said:
        """The same for what takes the key."""
        return self.ft(verb, "--dir", str(self.store), *words)

    def status(self, *words: str) -> Said:
        """``status`` as JSON."""
        return self.ft("status", "--output", "json", *words)

    def epochs(self) -> list[dict[str, Any]]:
        """``history`` as JSON, newest first."""
        said = self.ft("history", "--output", "json")
        assert said.status == 0, said
        epochs: list[dict[str, Any]] = said.json["epochs"]
        return epochs


def run(*words: str) -> Said:
    """Run ``ftstanctl`` with ``words``."""
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = ctl.main(words)
    return Said(status, out.getvalue(), err.getvalue())
