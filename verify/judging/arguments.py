"""Places where a function is not its polynomial yet: its argument is larger than one at the sizes measured.

The engine reads a function as a polynomial, whose powers are sizes of n. A gate with an argument of 20 has no slope,
and one whose argument moves by 3 moves by its whole range, so that what it passes on and what is behind it do not scale
as at larger sizes or with smaller constants. Such a row can agree, but it refutes nothing.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np

from scaling_algebra.spec.networks.language import Network

from .measurement import Measurement, Prediction

FALLING, LASTING = 1.0, 10.0
"""Root-mean-square up to which a function counts as its polynomial: of an argument that is predicted to fall with n, so
that at larger sizes it will be; and of one that is not: at 10 the slope of a sigmoid is 5e-5."""


def beyond(m: Measurement, network: Network, prediction: Prediction, quantity: str, step: int) -> str:
    """The function behind a quantity whose argument is beyond the limit at some size; empty if there is none.

    What is computed before the function depends on it by the updates of earlier steps only.
    """
    order = {s.out: k for k, s in enumerate(network.statements)}
    at = order.get(quantity.partition(".")[0], len(order))
    for f in network.functions:
        if not f.gates or f.kind.homogeneous:
            continue
        argument, last = f.inputs[0].name, step + 1 if at >= order[f.out] else step
        for name, t in product((argument, f"{argument}.change"), range(last)):
            sizes = [np.sqrt(np.mean(np.square(v))) for v in m.values.get((name, t), [])]
            exponents = prediction.get(name, ())
            exponent = exponents[t] if t < len(exponents) else None
            falls = isinstance(exponent, Fraction) and exponent < 0
            if sizes and max(sizes) > (FALLING if falls else LASTING):
                return f"{f.name}: {name} is {max(sizes):.2g} at t={t}, where it is no power of n yet"
    return ""
