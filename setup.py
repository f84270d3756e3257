"""Build of the Cython core; everything else is declared in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

FUZZ = os.environ.get("FTSTAN_FUZZ_BUILD") == "1"
DEBUG = FUZZ or os.environ.get("FTSTAN_DEBUG_BUILD") == "1"

MODULES = [
    "ftstan/node/awake.pyx",
    "ftstan/wire/block.pyx",
    "ftstan/wire/codec.pyx",
    "ftstan/wire/frames.pyx",
    "ftstan/front/connections.pyx",
    "ftstan/front/delivery.pyx",
    "ftstan/front/handshakes.pyx",
    "ftstan/front/interest.pyx",
    "ftstan/front/lines.pyx",
    "ftstan/front/loop.pyx",
    "ftstan/front/openssl.pyx",
    "ftstan/front/order.pyx",
    "ftstan/front/peer.pyx",
    "ftstan/front/switch.pyx",
    "ftstan/load/traffic.pyx",
    "ftstan/stores/encryption/evp.pyx",
    "ftstan/stores/encryption/payloads.pyx",
    "ftstan/stores/sql/rows.pyx",
    "ftstan/stores/file/log/crc.pyx",
    "ftstan/stores/file/log/records.pyx",
    "ftstan/stores/file/state/subreplay.pyx",
    "ftstan/spark/decode.pyx",
    "ftstan/broker/inflight.pyx",
    "ftstan/broker/keymap.pyx",
    "ftstan/broker/state.pyx",
    "ftstan/broker/delivery.pyx",
    "ftstan/broker/publishing.pyx",
]

directives = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": True,
    "embedsignature": True,
    "freethreading_compatible": False,
}

# The core works on raw C buffers, which Cython's own checks do not see: the debug build adds the
# address sanitizer and traps on array bounds. ``make test-debug`` runs the suite against it.
SANITIZE = ["-fsanitize=address,bounds", "-fsanitize-undefined-trap-on-error"]
# For ``make fuzz`` those of clang: the fuzzer steers by the branches that its code counts, and
# whatever is undefined ends the run. The fuzzer brings their runtime, which is loaded before
# Python.
FUZZED = ["-fsanitize=address,undefined,fuzzer-no-link", "-fno-sanitize-recover=undefined"]

JOBS = len(os.sched_getaffinity(0))

extensions = [
    Extension(
        path.removesuffix(".pyx").replace("/", "."),
        [path],
        include_dirs=[os.path.dirname(path)],
        extra_compile_args=["-O1", "-g", "-fno-omit-frame-pointer", *(FUZZED if FUZZ else SANITIZE)]
        if DEBUG
        # Debugging information of the generated code doubles the time to build.
        else ["-O3", "-g0"],
        extra_link_args=SANITIZE if DEBUG and not FUZZ else [],
    )
    for path in MODULES
]

setup(
    ext_modules=cythonize(
        extensions,
        compiler_directives=directives,
        build_dir="build/cython-debug" if DEBUG else "build/cython",
        annotate=False,
        nthreads=JOBS,
    ),
    options={"build_ext": {"parallel": JOBS}},
)
