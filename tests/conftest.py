"""What tests of several rooms share."""

import gc

from scaling_algebra.waiting import GARBAGE

from . import lanes


def pytest_addoption(parser):
    lanes.options(parser)


def pytest_configure(config):
    gc.set_threshold(*GARBAGE)
    config.pluginmanager.register(lanes.Lanes(config), "lanes")
