"""``python -m demo.pipeline``: play the story, print what each place holds.

Exit 0 only if all hold the same.

Status 1: places differ. 2: the demo could not be carried out. 130: interrupted. No child outlives
it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from demo.pipeline.scenario import CHANNELS, Places, Sizes, Story
from demo.screen import Screen
from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError
from ftstan.cli.pipeline.running import check_installed, translating
from ftstan.spark.session import session

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

EXIT_AGREED = 0
EXIT_DIFFERENT = 1
EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
LEAST = 1500

_OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "out")
_RULER = "-" * 78


def main() -> int:
    """Play it and return the exit status."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    screen = Screen(SystemClock())
    places = Places(os.path.join(_OUT, f"pipeline-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"))
    os.makedirs(places.run)
    screen.say(f"datastore, spool, archive and logs in {os.path.relpath(places.run)}")
    story = Story(places, screen, Sizes(max(options.messages, LEAST)))
    spark: SparkSession | None = None
    try:
        check_installed(remote=False)
        spark = _session(places)
        screen.say(f"Spark {spark.version} is up")
        with translating():
            story.play(spark)
    except KeyboardInterrupt:
        screen.say("interrupted")
        return EXIT_INTERRUPTED
    except FtstanError as error:
        screen.say(f"the demo failed: {error}")
        print(story.last_words())
        if error.hint:
            print(f"hint: {error.hint}")
        return EXIT_FAILED
    finally:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # a second Ctrl-C must not leave a child behind
        story.end()
        if spark is not None:
            spark.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return _judge(story, keep=options.keep)


def _session(places: Places) -> SparkSession:
    config = {
        "spark.driver.memory": "1g",
        # The second compiler takes more of two cores than it brings within a minute.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": places.of("spark"),
        "spark.sql.warehouse.dir": places.of("warehouse"),
        "spark.log.level": "ERROR",
    }
    return session("demo-pipeline", master="local[2]", config=config)


def _judge(story: Story, *, keep: bool) -> int:
    story.screen.clear()
    print(_RULER)
    print(f"{'':<30}" + "".join(f"{channel:>16}" for channel in CHANNELS))
    for place, tally in story.counted.items():
        cells = [tally.channels.get(channel, (0, 0)) for channel in CHANNELS]
        print(
            f"{place:<30}"
            + "".join(f"{count:>8,} {total & 0xFFFFFF:06x} " for count, total in cells)
        )
    print(_RULER)
    run = os.path.relpath(story.places.run)
    if story.differences:
        for difference in story.differences:
            print(difference)
        print(f"NOT THE SAME. Everything is kept: {run}")
        return EXIT_DIFFERENT
    if not keep:
        shutil.rmtree(story.places.run)
    story.screen.say(
        "every place holds the same messages; "
        f"{'all is kept in ' + run if keep else 'all was removed'}"
    )
    return EXIT_AGREED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo.pipeline", description="The pipeline from end to end."
    )
    parser.add_argument(
        "--messages", type=int, default=9000, help=f"messages to publish (9000, at least {LEAST})"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the datastores and the archive of a good run, too"
    )
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
