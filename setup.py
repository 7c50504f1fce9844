"""Compiles planning's inner loops; where that fails, autoddl is installed without them.

The library knows nothing of Python (`autoddl/_native/library.py` loads it by its path), so that a
wheel serves every Python 3 of its platform.
"""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCE = "autoddl/_native/loops.c"

fingerprint = runpy.run_path("autoddl/_native/fingerprint.py")["fingerprint"]


class PlainName(build_ext):
    """Names the library without the Python that compiled it."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"


class AnyPython(bdist_wheel):
    """Tags the wheel with its platform only."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": PlainName, "bdist_wheel": AnyPython},
    ext_modules=[
        Extension(
            "autoddl._native._loops",
            [SOURCE],
            define_macros=[("AUTODDL_LOOPS_SOURCE", f'"{fingerprint(Path(SOURCE).read_bytes())}"')],
            # Sums are neither fused nor reordered: the results are the same on every processor.
            extra_compile_args=["-O3", "-std=c11", "-ffp-contract=off", "-fno-trapping-math"],
            optional=True,
        )
    ],
)
