"""Compiles planning's inner loops; where that fails, autoddl is installed without them."""

import runpy
from pathlib import Path

from setuptools import Extension, setup

SOURCE = "autoddl/_native/loops.c"

fingerprint = runpy.run_path("autoddl/_native/fingerprint.py")["fingerprint"]

setup(
    ext_modules=[
        Extension(
            "autoddl._native._loops",
            [SOURCE],
            define_macros=[("AUTODDL_LOOPS_SOURCE", f'"{fingerprint(Path(SOURCE).read_bytes())}"')],
            # Sums are neither fused nor reordered: the results are the same on every processor.
            extra_compile_args=["-O3", "-std=c11", "-ffp-contract=off", "-fno-trapping-math"],
            optional=True,
        )
    ]
)
