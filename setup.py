"""Compiles the search for matchings, where half the time goes, if mypyc and a C compiler are at hand.

Without them, or with SCALECALC_PURE in the environment, all is Python: the same results, a wheel for every machine.
"""

import os
import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup

ROOM = Path("scaling_algebra") / "counting"


def extensions() -> list[Extension]:
    """The compiled modules; none where something is lacking. One that does not compile is left out."""
    if os.environ.get("SCALECALC_PURE"):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        return []
    room = runpy.run_path(str(ROOM / "__init__.py"))
    for old in ROOM.glob("*__mypyc*"):
        old.unlink()
    sources = [str(ROOM / f"{name}.py") for name in room["COMPILED"]]
    flags = ["--follow-imports=skip", "--ignore-missing-imports", "--config-file="]
    try:
        made = mypycify([*flags, *sources], debug_level="0", group_name=f"scaling_algebra.counting.{room['library']()}")
    except SystemExit as reason:  # what mypyc does with what it cannot compile
        print(f"not compiled: {reason}", file=sys.stderr)
        return []
    for extension in made:
        extension.optional = True
    return made


setup(ext_modules=extensions())
