"""The data of ``study transfer``: bytes of text, handwritten digits, labels of a random network, or the user's own.

Batches depend on seed and step only, so that they are the same at every size, rate and parameterization. Step None
gives the held-out batch, which is the same for every seed. To add data, write a function here and list it in ``DATA``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scaling_algebra import limits
from scaling_algebra.errors import (
    UsageError,
    guard_foreign_code,
    missing_package_error,
    quote_value,
    unknown_name_error,
)
from scaling_algebra.verify.tracing.model_loading import load_function

CLASSES = 10
"""Number of classes of the digits and of the teacher's labels: the loss starts at log 10."""
HELD_OUT = 1024
"""Number of examples in the teacher's held-out batch."""
STRETCHES = 128
"""Number of stretches of text in the held-out batch."""

Cut = Callable[[int, int | None], tuple[Any, Any]]
"""A function (seed, step) -> (inputs, targets)."""


@dataclass(frozen=True)
class Data:
    """A source of batches, held in memory.

    Attributes:
        name: its name.
        cut: returns the batch (inputs, targets) of a seed and a step; with step None, the held-out batch.
        digest: hash of the data, by which different data are distinguished.
        unit: unit of the loss.
        settings: the settings with which the data were made, such as the batch size.
    """

    name: str
    cut: Cut
    digest: str
    unit: str = "nats"
    settings: Mapping[str, int] = field(default_factory=dict)

    def batch(self, seed: int, step: int | None, device: str) -> tuple[Tensor, Tensor]:
        """Returns the inputs and targets of a seed and a step (None for the held-out batch) on a device.

        Raises:
            UsageError: the function that makes the batches returns something else.
        """
        drawn = self.cut(seed, step)
        if not (isinstance(drawn, tuple) and len(drawn) == 2):
            raise UsageError(f"{self.name} returns {quote_value(drawn)}; return (inputs, targets)")
        x, y = (torch.as_tensor(part) for part in drawn)
        if device != "cpu":
            x, y = x.pin_memory(), y.pin_memory()  # else the copy waits for the device
        return x.to(device, non_blocking=True), y.to(device, non_blocking=True)


def _compute_digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()[:16]


def load_text(batch: int = 16, context: int = 64) -> Data:
    """Makes data of bytes from the documentation that ships with Python; the targets are the next bytes.

    The last twentieth is held out.

    Raises:
        UsageError: this Python has no such documentation, or too little for the context.
    """
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError:
        raise UsageError(
            "this Python was installed without pydoc_data, the text to train on; give --data FILE.py:batches"
        ) from None
    tokens = np.frombuffer("".join(topics[key] for key in sorted(topics)).encode(), dtype=np.uint8).astype(np.int64)
    train, held = np.split(tokens, [int(0.95 * len(tokens))])
    if context >= len(held):
        raise UsageError(
            f"the context of {context} bytes is longer than the {len(held)} bytes of held-out text; give a shorter one"
        )

    def cut(seed: int, step: int | None) -> tuple[Any, Any]:
        rng, source = np.random.default_rng([0] if step is None else [seed, step]), held if step is None else train
        starts = rng.integers(0, len(source) - context, STRETCHES if step is None else batch)
        stretches = source[starts[:, None] + np.arange(context + 1)]
        return stretches[:, :-1], stretches[:, 1:]

    return Data("text", cut, _compute_digest(tokens), "nats a byte")


def read_digits(batch: int = 32) -> Data:
    """Makes data of the 8x8 images of digits that ship with scikit-learn, standardised; one in five is held out.

    Raises:
        UsageError: scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise missing_package_error("digits", "scikit-learn", "verify") from None
    images, labels = load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype(np.float32)
    held = np.arange(len(images)) % 5 == 4
    x, y = images[~held], labels[~held]

    def cut(seed: int, step: int | None) -> tuple[Any, Any]:
        if step is None:
            return images[held], labels[held]
        rows = np.random.default_rng([seed, step]).integers(0, len(x), batch)
        return x[rows], y[rows]

    return Data("digits", cut, _compute_digest(images))


def build_teacher(batch: int = 32, inputs: int = 16, units: int = 8) -> Data:
    """Makes data of Gaussian inputs, which never repeat, and the classes that a fixed random network assigns to them.

    class = argmax(V tanh(U x)), x of ``inputs`` entries, U with rows of norm about 2, V Gaussian. A network that knew U
    and V would reach loss 0.
    """
    rng = np.random.default_rng([inputs, units])
    u, v = 2 * rng.standard_normal((inputs, units)) / inputs**0.5, rng.standard_normal((units, CLASSES))

    def cut(seed: int, step: int | None) -> tuple[Any, Any]:
        drawn = np.random.default_rng([1, seed, step] if step is not None else [0])
        x = drawn.standard_normal((HELD_OUT if step is None else batch, inputs))
        return x.astype(np.float32), (np.tanh(x @ u) @ v).argmax(axis=1)

    return Data("teacher", cut, _compute_digest(u, v))


DATA: dict[str, Callable[..., Data]] = {"text": load_text, "digits": read_digits, "teacher": build_teacher}
"""The functions that make each kind of data, by name."""


@lru_cache(maxsize=2)
def load_data(name: str, settings: tuple[str, ...] = ()) -> Data:
    """Loads data by name, or from a function ``FILE.py:batches`` that is called with seed and step.

    Args:
        name: a name in ``DATA``, or the function.
        settings: ``name=number``, arguments of the function in ``DATA``.

    Raises:
        UsageError: there is no such data, a setting is unknown, or a package is missing.
    """
    if name not in DATA:
        if ":" not in name:
            raise unknown_name_error("data", name, (*DATA, "FILE.py:batches"))
        if settings:
            raise UsageError(
                f"--set applies to the shipped data, and {name} is your own function; leave out --set {settings[0]}"
            )
        batches = load_function(name)[0]

        def cut(seed: int, step: int | None) -> tuple[Any, Any]:
            with guard_foreign_code(f"{name}({seed}, {step})"):
                return batches(seed, step)

        first = Data(name, cut, "").batch(0, None, "cpu")
        return Data(name, cut, _compute_digest(*(x.numpy() for x in first)), "loss")
    known = {key: p.default for key, p in signature(DATA[name]).parameters.items()}
    chosen = {**known, **parse_settings(f"setting of {name}", settings, known)}
    made = DATA[name](**chosen)
    return Data(made.name, made.cut, made.digest, made.unit, chosen)


def parse_settings(kind: str, texts: Iterable[str], names: Mapping[str, int]) -> dict[str, int]:
    """Parses texts ``NAME=NUMBER``, where each number is a positive integer.

    Args:
        kind: what the names are names of, for messages.
        texts: the texts.
        names: the allowed names, each with an example of its value.

    Raises:
        UsageError: an unknown name, or no such number.
    """
    values: dict[str, int] = {}
    for given in texts:
        name, _, number = (part.strip() for part in given.partition("="))
        if name not in names:
            raise unknown_name_error(kind, name, names)
        try:
            values[name] = limits.check_range(name, limits.parse_integer(number), 1, limits.SEEDS)
        except ValueError:
            wrong = f"cannot read the setting {given!r}; write name=number, e.g. {name}={names[name]}"
            raise UsageError(wrong) from None
    return values
