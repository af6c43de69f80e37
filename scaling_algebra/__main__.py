"""``scalecalc`` and ``python -m scaling_algebra``: a signal ends them in one line, from the first moment on."""

from __future__ import annotations

import os
import sys
import warnings


def run() -> None:
    """Run the command line, in a child process where it calls foreign code (on Linux)."""
    try:
        import signal

        from .supervision import find_foreign_code, supervise
        from .waiting import ended, heard

        for s in heard():
            signal.signal(s, ended)
    except KeyboardInterrupt:  # before there is a handler
        sys.stderr.write("scalecalc: interrupted\n")
        sys.exit(130)
    if sys.platform == "linux" and (what := find_foreign_code(sys.argv[1:])):
        sys.exit(supervise(what, _run_here))
    _run_here()


def _run_here() -> None:
    """Run the command line without what libraries log and warn of, unless Python was told to show warnings."""
    from .cli import main

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    main(prog_name="scalecalc")


if __name__ == "__main__":
    run()
