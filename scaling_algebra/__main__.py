"""``python -m scaling_algebra``: the command line."""

from .cli import main

main(prog_name="scalecalc")
