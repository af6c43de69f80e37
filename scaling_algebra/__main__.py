"""Entry point of ``scalecalc`` and ``python -m scaling_algebra``. An early signal ends it with one line, no
traceback."""

from __future__ import annotations

import os
import sys
import warnings


def run() -> None:
    """Runs the command line. On Linux it runs in a child process if the arguments name code of the user
    (``supervision.py``).
    """
    try:
        import signal

        from .supervision import find_foreign_code, supervise
        from .waiting import end_now, find_stop_handlers

        for s in find_stop_handlers():
            signal.signal(s, end_now)
    except KeyboardInterrupt:  # before there is a handler
        sys.stderr.write("scalecalc: interrupted\n")
        sys.exit(130)
    if sys.platform == "linux" and (what := find_foreign_code(sys.argv[1:])):
        sys.exit(supervise(what, _run_here))
    _run_here()


def _run_here() -> None:
    """Runs the command line without logs and warnings of libraries, unless Python was started with warnings enabled."""
    from .cli import main

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    main(prog_name="scalecalc")


if __name__ == "__main__":
    run()
