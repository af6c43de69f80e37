"""``scalecalc`` and ``python -m scaling_algebra``: a signal ends them in one line, from the first moment on."""

from __future__ import annotations

import os
import signal
from typing import Any

STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _stop(number: int, frame: Any) -> None:
    """While nothing is loaded, there is nothing to put away."""
    os.write(2, b"scalecalc: interrupted\n")
    os._exit(130)


def run() -> None:
    """The command line, which takes the signals over once it is loaded."""
    usual = {s: signal.getsignal(s) for s in STOPPING}
    heard = [s for s, handler in usual.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    for s in heard:
        signal.signal(s, _stop)
    from .cli import main

    for s in heard:
        signal.signal(s, usual[s])
    main(prog_name="scalecalc")


if __name__ == "__main__":
    run()
