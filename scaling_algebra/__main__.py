"""``scalecalc`` and ``python -m scaling_algebra``: a signal ends them in one line, from the first moment on."""

from __future__ import annotations

import sys


def run() -> None:
    """The command line, which takes the signals over while a verb works (``waiting.interruptible``)."""
    try:
        import signal

        from .waiting import ended, heard

        for s in heard():
            signal.signal(s, ended)
    except KeyboardInterrupt:  # before there is a handler
        sys.stderr.write("scalecalc: interrupted\n")
        sys.exit(130)
    from .cli import main

    main(prog_name="scalecalc")


if __name__ == "__main__":
    run()
