"""Build of the Cython core; everything else is declared in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("FTSTAN_DEBUG_BUILD") == "1"

MODULES = [
    "ftstan/wire/block.pyx",
    "ftstan/wire/codec.pyx",
    "ftstan/wire/frames.pyx",
    "ftstan/stores/file/records.pyx",
    "ftstan/broker/inflight.pyx",
    "ftstan/broker/core.pyx",
]

directives = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "overflowcheck": DEBUG,
    "cdivision": True,
    "embedsignature": True,
    "freethreading_compatible": False,
}

extensions = [
    Extension(
        path.removesuffix(".pyx").replace("/", "."),
        [path],
        # The debug build keeps C assert() and checks every buffer index; the suite runs against it in CI.
        extra_compile_args=["-O1", "-g", "-UNDEBUG", "-fsanitize-undefined-trap-on-error", "-fsanitize=bounds"]
        if DEBUG
        else ["-O3"],
        define_macros=[("FTSTAN_CHECKED", "1")] if DEBUG else [],
    )
    for path in MODULES
]

setup(
    ext_modules=cythonize(
        extensions,
        compiler_directives=directives,
        build_dir="build/cython-debug" if DEBUG else "build/cython",
        annotate=False,
    ),
)
