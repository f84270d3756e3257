"""``ftstan-pipeline`` for ``spark-submit``, which wants a file: its words follow the file's name.

    spark-submit --master spark://master:7077 ftstan_pipeline.py archive /mnt/spool /mnt/archive

The interpreter that Spark runs (``PYSPARK_PYTHON``) must have ``ftstan[spark]``, on the driver and
on every executor.
"""

import sys

from ftstan.cli.pipeline.command import main

if __name__ == "__main__":
    sys.exit(main())
