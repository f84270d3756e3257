"""``docs/pipeline.md``: the tour and the questions in SQL run as they stand there, and every other
command is one.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from ftstan.cli.pipeline.command import PROGRAM, main
from ftstan.spark.log import Store
from tests.processes import READY, ROOT, until
from tests.spark.streaming import publish, stored, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.processes import Stage

DOCS = ROOT / "docs"
PAGE = (DOCS / "pipeline.md").read_text(encoding="utf-8")
PROGRAM_NAME = "ftstan-pipeline "
COUNT = 60
RUN = ("Tour", "Questions in SQL")


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##+ )", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def commands(text: str) -> list[str]:
    """The lines of a page that are commands of ours."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line.startswith(PROGRAM_NAME) and "..." not in line]


def placed(text: str, directory: Path, port: int) -> str:
    return (
        text.replace("/nss/orders", str(directory / "store"))
        .replace("/srv", str(directory))
        .replace(":4222", f":{port}")
    )


@pytest.mark.parametrize("page", sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")))
def test_every_command_of_every_page_has_words_that_exist(page: str) -> None:
    for line in commands((DOCS / page).read_text(encoding="utf-8")):
        words = shlex.split(line, comments=True)[1:]
        if ">" in words:
            words = words[: words.index(">")]
        PROGRAM.build_parser().parse_args(words)


@pytest.mark.processes
def test_the_tour_and_the_questions_run_as_they_stand(
    spark: SparkSession, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    server = stage.file_server("server", "-dedup_window", "1000", cluster="orders")
    server.wait_for(READY)
    url = url_of(server)
    publish(url, "orders", [b'{"n": %d}' % n for n in range(COUNT)], cluster="orders")
    # A reader of files stops where the server has confirmed, which it does every second.
    until((stage.store / "orders" / "confirmed.bin").exists, "the server to confirm the channel")
    until(
        lambda: Store(str(stage.store)).ends(["orders"])["orders"][1] == COUNT + 1,
        "all messages to be confirmed",
    )
    ran = 0
    for title in RUN:
        for line in commands(section(title)):
            status = main(shlex.split(placed(line, stage.directory, server.port))[1:])
            assert status == 0, (line, capsys.readouterr())
            ran += 1
    assert ran >= 10
    assert [m.data for m in stored(url, "again.orders", cluster="orders")] == [
        m.data for m in stored(url, "orders", cluster="orders")
    ]
    assert (stage.directory / "audit.html").stat().st_size > 1000
    assert (stage.directory / "restored" / "orders" / "msgs.1.dat").is_file()
    (program,) = re.findall(r"```python\n(.*?)```", section("Tour"), re.DOTALL)
    capsys.readouterr()
    exec(placed(program, stage.directory, server.port), {})
    assert '{"n": 0}' in capsys.readouterr().out
    assert spark.version


def test_the_page_has_every_option_of_what_it_describes() -> None:
    described = {
        "--checkpoint",
        "--rate",
        "--again",
        "--skip-damaged",
        "--allow-gaps",
        "--no-verify",
        "--spark-log",
    }
    assert [word for word in described if f"`{word}" not in PAGE] == []
