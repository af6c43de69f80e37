"""The comparison with the paper's own code, on a made-up checkout whose functions are right, or wrong in one cell."""

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from ..shared import benchmark

official = benchmark("official_code")

MLP = """
from scaling_algebra import derive

ROLES = {roles!r}


class Config:
    def __init__(self, regime, optimizer, rule):
        self.regime = regime
        self.scaling = derive(
            regime=regime, optimizer=optimizer, parameterization=rule, readout_init="maximal"
        ).scaling

    def adjust_dimensions(self, n, m, n_e):
        return (8 if self.regime == "I" else n // 8), (16 if self.regime == "II" else n)

    def get_init_scale(self, tensor, n, m, n_e, fan_in, fan_out):
        power = self.scaling.tensors[ROLES[tensor]].init_std
        return 0.0 if power is None else power.at({{"N": n, "M": m, "N_e": n_e}})

    def get_lr_scale(self, tensor, n, m, n_e, lr, fan_in):
        return lr * self.scaling.tensors[ROLES[tensor]].lr.at({{"N": n, "M": m, "N_e": n_e}}){wrong}

    def get_adam_eps_scale(self, tensor, n, m, n_e):
        power = self.scaling.tensors[ROLES[tensor]].eps
        return 1.0 if power is None else power.at({{"N": n, "M": m, "N_e": n_e}})

    def get_default_alpha(self):
        return 0.0 if self.regime == "I" else 1.0


class ByName(dict):
    def __missing__(self, name):
        return Config(*ASKED[name])


ASKED = {asked!r}
CONFIGS = ByName()
"""

TRANSFORMER = """
import torch

from scaling_algebra import derive

ROLES = {roles!r}
ASKED = {asked!r}


class Config:
    def __init__(self, regime, rule, readout):
        self.parts = {{
            network: derive(
                regime=regime,
                architecture=network,
                optimizer="adamw",
                parameterization=rule if network == "moe" else "mup",
                readout_init=readout,
            ).scaling.tensors
            for network in ("moe", "mlp")
        }}

    def scale(self, role):
        network, tensor = ROLES[role]
        return self.parts[network][tensor]

    def init_weight(self, role, param, fan_in, fan_out, config):
        power = self.scale(role).init_std
        if power is None:
            torch.nn.init.zeros_(param)
        else:
            sizes = {{"N": config.n_embd, "M": config.n_exp, "N_e": fan_in if role == "expert_down" else config.n_embd}}
            torch.nn.init.normal_(param, mean=0.0, std=power.at(sizes))

    def sizes(self, config):
        return {{"N": config.n_embd, "M": config.n_exp, "N_e": config.n_embd}}

    def lr_scale(self, role, config):
        return self.scale(role).lr.at(self.sizes(config))

    def eps_scale(self, role, config):
        return self.scale(role).eps.at(self.sizes(config))


SCALING_CONFIGS = {{name: (lambda asked=asked: Config(*asked)) for name, asked in ASKED.items()}}
"""


def checkout(folder, wrong=""):
    """A checkout whose functions are those that are derived, but for what is ``wrong``."""
    asked = {name: where for *where, name in official.MLP_CONFIGS}
    mlp = MLP.format(roles=official.ROLES, asked=asked, wrong=wrong)
    asked = {name: where for *where, name in official.TRANSFORMER_CONFIGS}
    transformer = TRANSFORMER.format(roles=official.TRANSFORMER_ROLES, asked=asked)
    for path, text in {official.MLP: mlp, official.TRANSFORMER: transformer}.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    return str(folder)


def run(*args):
    return CliRunner().invoke(official.main, args)


def test_one_wrong_cell_is_found_and_nothing_else(tmp_path):
    """The learning rate of one tensor is off by sqrt(N) in regime II. Regimes I and III have one function for muP and
    MSSP; what tells them apart there is a flag, so that the init of the router differs."""
    found = run(checkout(tmp_path, ' * (n**0.5 if tensor == "w_expert2" and self.regime == "II" else 1)'))
    assert found.exit_code == 1 and "261 of 267 cells are equal" in found.output, found.output
    differs = [found.output.count(x) for x in ("differs:", "lr of w_expert2", "init of w_router")]
    assert differs == [6, 4, 2]


@pytest.mark.parametrize(("wrong", "words"), [(" + n", "which is no power"), (None, "there is no")])
def test_what_is_not_that_code_is_one_line(tmp_path, wrong, words):
    if wrong:
        checkout(tmp_path, wrong)
    found = run(str(tmp_path))
    assert found.exit_code == 2 and words in found.stderr and len(found.stderr.splitlines()) == 1, found.output
