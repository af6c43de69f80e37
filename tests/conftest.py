"""What tests of several rooms share."""

import gc
import html
import json
import re
import shutil
import subprocess

import pytest

from scaling_algebra.cli import GARBAGE

from . import lanes

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
_QUIET += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
_QUIET += ["--hide-scrollbars", "--virtual-time-budget=5000"]


def pytest_addoption(parser):
    lanes.options(parser)


def pytest_configure(config):
    gc.set_threshold(*GARBAGE)
    config.pluginmanager.register(lanes.Lanes(config))


@pytest.fixture
def browser(tmp_path):
    """Opens a page in a frame of some width (a window has a least width) and returns what a script finds in it."""
    if _BROWSER is None:
        pytest.skip("no chromium or chrome on PATH")

    def opened(page, width, probe, anchor=""):
        inside = page.replace("<script>", f"<script>location.hash = {json.dumps(anchor)};", 1)
        inside = inside.replace("</body>", f"<script>parent.found((() => {{{probe}}})())</script></body>")
        frame = tmp_path / "frame.html"
        frame.write_text(
            "<!doctype html><body><script>found = x => document.body.dataset.found = JSON.stringify(x)</script>"
            f'<iframe width="{width}" height="900" style="border:0" srcdoc="{html.escape(inside)}"></iframe></body>',
            encoding="utf-8",
        )
        command = [_BROWSER, *_QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", frame.as_uri()]
        text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        return json.loads(html.unescape(re.search('data-found="([^"]*)"', text)[1]))

    return opened
