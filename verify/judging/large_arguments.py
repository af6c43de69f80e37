"""Detects functions whose argument is so large at the measured sizes that they do not behave like their polynomial
approximation.

The engine replaces a function by a polynomial, whose powers have sizes in n. But a gate with an argument of 20 has no
slope, and if its argument moves by 3, it moves by its whole range. Then its output, and all that depends on it, does
not scale as it does at larger sizes or with smaller constants. Such a row may agree, but it refutes nothing.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np

from scaling_algebra.spec.networks.language import Network

from .measurement import Measurement, Prediction

FALLING, LASTING = 1.0, 10.0
"""Largest rms of an argument for which a function counts as its polynomial: if the argument is predicted to fall
with n, and if it is not (at 10 the slope of a sigmoid is 5e-5)."""


def find_large_argument(m: Measurement, network: Network, prediction: Prediction, quantity: str, step: int) -> str:
    """Returns a sentence on a function that affects a quantity and whose argument is too large, at some size, to be
    approximated by a polynomial; "" if there is none.

    Quantities computed before the function depend on it only through earlier updates, so that for them its argument
    after the last update does not count.

    Args:
        m: the measurement, with the sizes of arguments.
        network: the network, with its functions.
        prediction: exponents by quantity; the limit for an argument (``FALLING``) is lower if the argument is
            predicted to
            fall with n.
        quantity: name of the quantity.
        step: number of updates done.
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
