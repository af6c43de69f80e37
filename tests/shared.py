"""The command line, in this process."""

from click.testing import CliRunner

from scaling_algebra.cli import main


def scalecalc(*words, **options):
    """What a command says."""
    return CliRunner().invoke(main, [str(word) for word in words], **options)
