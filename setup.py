"""Compiles planning's inner loops; where that fails, autoddl is installed without them."""

import hashlib

from setuptools import Extension, setup

SOURCE = "autoddl/compiled/loops.c"

with open(SOURCE, "rb") as file:
    fingerprint = hashlib.sha256(file.read().replace(b"\r\n", b"\n")).hexdigest()[:16]

setup(
    ext_modules=[
        Extension(
            "autoddl.compiled._loops",
            [SOURCE],
            define_macros=[("AUTODDL_LOOPS_SOURCE", f'"{fingerprint}"')],
            # Sums are neither fused nor reordered: the results are the same on every processor.
            extra_compile_args=["-O3", "-std=c11", "-ffp-contract=off", "-fno-trapping-math"],
            optional=True,
        )
    ]
)
