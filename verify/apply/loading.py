"""A user's own ``build``, from ``FILE.py:NAME`` or ``package.module:NAME``, and what stands beside it; or
``hf:config.json``.

A file may have ``SCALING``, a dict with keywords of ``check_model`` (base, target, seeds, ...): then nothing else needs
to be said where the check is run. Read next: ``checking.py`` (what ``build`` returns).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from scaling_algebra.errors import unknown_name
from scaling_algebra.recipes.files import HUGGING_FACE
from scaling_algebra.recipes.sizes import read_sizes
from scaling_algebra.verify.tracing.sources import BESIDE, build_of, function_of

from .checking import check_model


def load(text: str, options: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """``build``, and its options: those beside it, replaced by those that are given.

    Raises:
        UsageError: no such file, module or function, its code fails, or a keyword that ``check_model`` has not.
    """
    if text.startswith(HUGGING_FACE):
        target = options.get("target")
        deep = target is not None and "L" in read_sizes(target, "target")  # what branches lack is then in the numbers
        return build_of(text, deep)[0], {"fold": deep, **options}
    build, beside = function_of(text)
    where = text.rpartition(":")[0]
    keywords = list(signature(check_model).parameters)[1:]
    for key in beside:
        if key not in keywords:
            raise unknown_name(f"keyword in {BESIDE} of {where}", str(key), keywords)
    return build, {**beside, **options}
