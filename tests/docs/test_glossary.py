"""docs/glossary.md is what ``scalecalc list --glossary --format markdown`` prints."""

from click.testing import CliRunner

from scaling_algebra.cli import main

from .pages import ROOT


def test_the_glossary_is_fresh():
    printed = CliRunner().invoke(main, ["list", "--glossary", "--format", "markdown"])
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert printed.exit_code == 0 and page.endswith("\n\n" + printed.output.rstrip("\n") + "\n")
