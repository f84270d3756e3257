"""A short drill on a real database of each kind: a dead owner, sessions that the database ends, and
a planned hand-over.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from ftstan.drill import ledger
from ftstan.drill.ledger import Fault, Owner
from ftstan.drill.local import CLUSTER
from ftstan.stores.sql.source import parse
from tests.sqlservers import DRIVERS, execute

if TYPE_CHECKING:
    from tests.processes import Stage
    from tests.sqlservers import SqlServers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

SHORT = """\
text: Short.
workload: {rate: 100, publishers: 1, queue: 2}
settle: 300ms
faults: [kill, kill-sessions, switchover]
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_short_drill_on_a_database_is_passed(
    stage: Stage, sql_servers: SqlServers, driver: str
) -> None:
    text = sql_servers.create(driver, tables=False)
    source = parse(driver, text, {})
    secret = stage.directory / "source"
    secret.touch(0o600)
    secret.write_text(text)
    file = stage.directory / "short.yaml"
    file.write_text(SHORT)
    out = stage.directory / "run"
    words = [sys.executable, "-m", "ftstan.cli.ctl", "drill", str(file), "--output", "json"]
    words += ["--out", str(out), "--sql-driver", driver, "--sql-source-file", str(secret)]
    child = stage.run("drill", words)
    assert child.status(300.0) == 0, child.tail()
    found = re.search(r"^\{.*\}$", child.text(), re.MULTILINE)
    assert found is not None, child.tail()
    page = json.loads(found[0])
    assert page["passed"]
    assert page["setting"]["database"] == source.shown()
    assert page["takeovers"][0]["fault"] == "kill"
    assert page["takeovers"][-1]["fault"] == "switchover"
    records = list(ledger.read(str(out / "ledger")))
    done = [record.fault for record in records if isinstance(record, Fault)]
    assert done == ["kill", "kill-sessions", "switchover"]
    # The epochs of the database: of two owners each would be seen.
    epochs = [record.epoch for record in records if isinstance(record, Owner)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) >= 3
    assert [
        path for path in out.rglob("*") if path.is_file() and text.encode() in path.read_bytes()
    ] == []
    # It is stored there, in nothing else, and the next drill may remove it.
    assert os.listdir(out / "store") == ["admin.key"]
    assert execute(source, "SELECT id FROM ServerInfo") == [(CLUSTER,)]
    ((stored,),) = execute(source, "SELECT COUNT(*) FROM Messages")
    assert stored >= page["acked"]
    sql_servers.drop(text)
