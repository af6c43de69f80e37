"""Decoupled weight decay: what was learned, and what the weights did."""

import numpy as np
import torch

from scaling_algebra import derive
from scaling_algebra.verify.judging.report import judge
from scaling_algebra.verify.measuring.runs import measure
from scaling_algebra.verify.networks.moe_block import MoEBlock, Replicas
from scaling_algebra.verify.networks.scales import LOSS_SLOPE


def test_both_readings_of_an_update_are_measured():
    """AdamW, muP, regime III: Q_1 - Q_0 shrinks as Q_0 does, of which the learned part is n^-1."""
    d, sizes = derive("III", "adamw", "mup"), (12, 24, 48, 96)
    moved, learned = [], []
    for n in sizes:
        block = MoEBlock(Replicas({"N": n, "N_e": n, "M": n}, range(8)), d.scaling)
        stepper, before = block.optimizer(d.optimizer), block.weights["Q"].detach().clone()
        (LOSS_SLOPE * block().sum()).backward()
        stepper.step()
        group = next(g for g in stepper.param_groups if g["symbol"] == "Q")
        kept = 1 - group["lr"] * group["weight_decay"]
        with torch.no_grad():
            moved.append((block.weights["Q"] - before).square().mean().sqrt().item())
            learned.append((block.weights["Q"] - kept * before).square().mean().sqrt().item())
    look = d.analysis()
    for name, values in (("dQ.with-decay", moved), ("dQ", learned)):
        slope = np.polyfit(np.log(sizes), np.log(values), 1)[0]
        assert abs(slope - float(look(name, 1).exponent)) < 0.15, (name, slope)
    assert look("dQ.with-decay", 1).exponent != look("dQ", 1).exponent


def test_any_network_is_measured_both_ways():
    d = derive(ray="N=1", optimizer="adamw", parameterization="mup", architecture="mlp")
    predicted = {name: [a.exponent for a in answers] for name, answers in d.analysis().all(1).items()}
    report = judge(measure(d, sizes=[32, 64, 128, 256], seeds=32, steps=1), predicted)
    rows = {(r.quantity, r.step): r for r in report.rows}
    for name in ("dW2", "dW2.with-decay", "h1.change.with-decay", "h2.change.with-decay"):
        assert rows[name, 1].verdict == "AGREES", rows[name, 1]
    assert rows["dW2", 1].predicted != rows["dW2.with-decay", 1].predicted
