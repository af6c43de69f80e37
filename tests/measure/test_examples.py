"""The examples of the guide that take long print what is shown."""

import pytest

from ..docs.test_examples import compare, examples

DEPENDS = ("verify/studies", "verify/networks", "tests/docs")


@pytest.mark.parametrize("block", examples(long=True))
def test_what_is_shown_is_what_is_printed(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compare(block, tmp_path)
