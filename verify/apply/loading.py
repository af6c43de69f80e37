"""Loads a user's ``build`` function from ``FILE.py:NAME``, ``package.module:NAME`` or ``hf:config.json``.

A file may define ``SCALING``, a dict of keywords of ``check_model`` (base, target, seeds, ...), which are then the
defaults. Read next: ``checking.py`` (what ``build`` returns).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from scaling_algebra.errors import unknown_name_error
from scaling_algebra.files import HUGGING_FACE
from scaling_algebra.recipes.sizes import read_sizes
from scaling_algebra.verify.tracing.model_loading import SETTINGS_NAME, load_function, load_model_builder

from .checking import check_model


def load_build(text: str, options: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns the ``build`` function and the options of ``check_model``.

    Args:
        text: ``FILE.py:NAME``, ``package.module:NAME`` or ``hf:config.json``.
        options: options that the user gave; they take precedence over those of the file.

    Raises:
        UsageError: there is no such file, module or function, its code fails, or ``SCALING`` has an unknown keyword.
    """
    if text.startswith(HUGGING_FACE):
        target = options.get("target")
        # if the depth is given, missing factors of branches are folded into the numbers
        deep = target is not None and "L" in read_sizes(target, "target")
        return load_model_builder(text, deep)[0], {"fold": deep, **options}
    build, beside = load_function(text)
    where = text.rpartition(":")[0]
    keywords = list(signature(check_model).parameters)[1:]
    for key in beside:
        if key not in keywords:
            raise unknown_name_error(f"keyword in {SETTINGS_NAME} of {where}", str(key), keywords)
    return build, {**beside, **options}
