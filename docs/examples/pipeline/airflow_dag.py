"""Two DAGs for Airflow 3: archive every hour, and audit what is in datastore, spool and archive
once a night.

Each task is one command of ``ftstan-pipeline``; its exit status decides. 1 (something is wrong with
the messages) fails at once: a person has to look. Any other failure is tried again. Put this file
into the DAGs folder and change the paths; the workers need ``ftstan[spark]`` and Java 17. The
Airflow variable ``ftstan_master`` names a cluster.
"""

from __future__ import annotations

import datetime as dt
import subprocess

from airflow.exceptions import AirflowFailException
from airflow.sdk import Variable, dag, task

STORE = "/nss/orders"
SPOOL = "/var/spool/ftstan"
ARCHIVE = "/srv/ftstan/archive"
PAGE = "/srv/ftstan/audit.html"

FOUND = 1
COMMON = {
    "start_date": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "catchup": False,
    "max_active_runs": 1,
    "default_args": {
        "retries": 3,
        "retry_delay": dt.timedelta(minutes=5),
        "retry_exponential_backoff": True,
    },
}


def pipeline(*words: str) -> str:
    """Run one command; returns its JSON."""
    master = Variable.get("ftstan_master", default="local[*]")
    command = ["ftstan-pipeline", *words, "--master", master, "--quiet", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == FOUND:
        raise AirflowFailException(done.stderr or done.stdout)
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {done.stderr}")
    return done.stdout


@dag(dag_id="ftstan_archive", schedule="@hourly", **COMMON)
def archiving() -> None:
    """Slices that the limits removed become files of the archive."""

    @task
    def archive() -> str:
        return pipeline("archive", SPOOL, ARCHIVE)

    archive()


@dag(dag_id="ftstan_audit", schedule="30 3 * * *", **COMMON)
def auditing() -> None:
    """Every message is there, once and undamaged; the page is for people."""

    @task
    def audit() -> str:
        return pipeline("audit", STORE, SPOOL, ARCHIVE, "--html", PAGE)

    audit()


archiving()
auditing()
