"""A user's own ``build``, from ``FILE.py:NAME`` or ``package.module:NAME``, and what stands beside it.

A file may have ``SCALING``, a dict with keywords of ``check_model`` (base, target, roles, ...): then nothing else needs
to be said where the check is run. Read next: ``contract.py`` (what ``build`` returns).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, shown, unknown_name

from .checking import check_model

BESIDE = "SCALING"


def load(text: str, options: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """``build``, and its options: those beside it, replaced by those that are given.

    Raises:
        UsageError: no such file, module or function, its code fails, a keyword that ``check_model`` has not, or sizes
            are missing.
    """
    build, beside = function_of(text)
    where = text.rpartition(":")[0]
    keywords = list(signature(check_model).parameters)[1:]
    for key in beside:
        if key not in keywords:
            raise unknown_name(f"keyword in {BESIDE} of {where}", str(key), keywords)
    for name in ("base", "target"):
        if name not in {**beside, **options}:
            raise UsageError(f"no {name} of {text}; give {name}='N=...,M=...' here, or in {BESIDE} beside it")
    return build, {**beside, **options}


def function_of(text: str) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """``build``, and the dict beside it.

    Raises:
        UsageError: as ``load``.
    """
    where, colon, name = text.rpartition(":")
    if not (colon and where and name.isidentifier()):
        raise UsageError(f"cannot read the model {shown(text)}; write FILE.py:NAME, for example mymodel.py:build")
    module = _module(where)
    build = getattr(module, name, None)
    if not callable(build):
        lacks = "has no function" if build is None else f"{name} is {shown(build)}, no function; it has"
        functions = [x for x, y in vars(module).items() if isfunction(y)]
        raise UsageError(f"{where} {lacks} {name}: {', '.join(functions) or 'none'}; write FILE.py:NAME of yours")
    beside = getattr(module, BESIDE, {})
    if not isinstance(beside, dict):
        raise UsageError(f"{BESIDE} in {where} is {shown(beside)}; give a dict of keywords, such as base and target")
    return build, beside


def _module(where: str) -> Any:
    path, file = Path(where), where.endswith(".py")
    if file and not path.is_file():
        raise UsageError(f"no file {where}; give the file of your model as FILE.py:NAME")
    folder = str(path.parent.resolve()) if file else ""
    sys.path.insert(0, folder)
    try:
        spec: Any = spec_from_file_location(f"_scaling_{path.stem}", path) if file else None
        if spec is None:
            return importlib.import_module(where)
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        raise UsageError(f"{where} raises {type(error).__name__}: {error}; it must run by itself") from error
    finally:
        sys.path.remove(folder)
