"""Schemas of a campaign and of a stored plan: the type, the range and the notation of every key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert, json

from scaling_algebra import limits
from scaling_algebra.errors import UsageError, quote_value, unknown_name_error

MOST_RUNS = 20_000
"""Maximum number of configurations in one campaign or plan."""

_WHOLE = "an integer from {} to {}".format
_Word = Annotated[str, Meta(min_length=1, max_length=200, description="a name")]
_Words = Annotated[list[_Word], Meta(min_length=1, max_length=1000, description="a list of names")]
_Rays = Annotated[
    list[_Word | dict[str, str | int]],
    Meta(min_length=1, max_length=1000, description="a list of rays such as ['N=1,N_e=1/2,M=1']"),
]
_Steps = Annotated[int, Meta(ge=0, le=limits.STEPS, description=_WHOLE(0, limits.STEPS))]
_Sizes = Annotated[
    list[Annotated[int, Meta(ge=2, le=limits.SIZE)]],
    Meta(min_length=1, max_length=limits.RATES, description=f"a list of integers from 2 to {limits.SIZE}"),
]
_Seeds = Annotated[int, Meta(ge=1, le=limits.SEEDS, description=_WHOLE(1, limits.SEEDS))]
_Work = Annotated[float, Meta(gt=0, le=1e15, description="a number above 0")]
_Together = Annotated[int, Meta(ge=1, le=2**20, description=_WHOLE(1, 2**20))]


class CampaignEntry(Struct):
    """A table ``[[run]]`` of a campaign, after the top-level keys have been merged into it."""

    regimes: _Words | UnsetType = UNSET
    rays: _Rays | UnsetType = UNSET
    optimizers: _Words | UnsetType = UNSET
    parameterizations: _Words | UnsetType = UNSET
    architectures: _Words | UnsetType = UNSET
    steps: _Steps | UnsetType = UNSET
    sizes: _Sizes | UnsetType = UNSET
    seeds: _Seeds | UnsetType = UNSET
    dtype: _Word | UnsetType = UNSET
    largest: _Work | UnsetType = UNSET
    work: _Work | UnsetType = UNSET
    together: _Together | UnsetType = UNSET
    readout_init: _Word | UnsetType = UNSET
    epsilon: _Word | UnsetType = UNSET


class StoredRun(Struct, forbid_unknown_fields=True):
    """The keys of one run in a stored plan."""

    configuration: dict[str, Any]
    steps: _Steps
    sizes: _Sizes
    seeds: Annotated[list[_Seeds], Meta(min_length=1, max_length=limits.RATES)]
    dtype: str = "float64"
    products: list[str] = []
    together: _Together = 1
    planted: list[str] = []


class CampaignPlan(Struct):
    """The keys of the plan that is stored in a folder, ``plan.json``."""

    runs: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_RUNS)]
    claims: list[str] = []
    command: str = ""
    shard: Annotated[str, Meta(max_length=40)] = ""


def check_entry(run: Mapping[str, Any], where: str) -> None:
    """Checks a table ``[[run]]`` of a campaign.

    Raises:
        UsageError: an unknown key, a value of the wrong type or out of range, or neither a regime nor a ray. The
            message names the place and the key.
    """
    for key in run:
        if key not in CampaignEntry.__struct_fields__:
            raise unknown_name_error(f"key in {where}", key, CampaignEntry.__struct_fields__)
    try:
        convert(dict(run), CampaignEntry)
    except ValidationError as error:
        key = _format_path(error).removeprefix(".").partition("[")[0]
        entry = json.schema(CampaignEntry)["$defs"]["CampaignEntry"]["properties"]
        raise UsageError(f"{where}: {key} is {quote_value(run.get(key))}; write {entry[key]['description']}") from None
    if not run.get("regimes") and not run.get("rays"):
        raise UsageError(f"{where} has neither regimes nor rays; write for example regimes = ['III']")


def check_run(run: Any, where: str) -> None:
    """Checks a run of a stored plan.

    Raises:
        UsageError: the value does not describe a run. The message names the place and the key.
    """
    try:
        kept = convert(run, StoredRun)
    except ValidationError as error:
        place = f" at {_format_path(error)[1:]}" if _format_path(error) else ""
        raise UsageError(
            f"{where} is damaged{place}: {_format_reason(error)}; start again with another -o DIR"
        ) from None
    if len(kept.sizes) != len(kept.seeds):
        counts = f"{len(kept.sizes)} sizes and {len(kept.seeds)} seeds"
        raise UsageError(
            f"{where} is damaged: it has {counts}, and needs one number of seeds for each size; start again with "
            "another -o DIR"
        )


def check_plan(plan: Mapping[str, Any], where: str) -> None:
    """Checks a stored plan.

    Raises:
        UsageError: the value does not describe a plan. The message names the place and the key.
    """
    try:
        convert(dict(plan), CampaignPlan)
    except ValidationError as error:
        raise UsageError(
            f"{where}{_format_path(error)}: {_format_reason(error)}; start again with another -o DIR"
        ) from None


def _format_path(error: ValidationError) -> str:
    """Returns the path of the invalid value in the data, such as ``.sizes[2]``; empty if the error names none."""
    return str(error).rpartition(" - at `$")[2].removesuffix("`") if " - at `$" in str(error) else ""


def _format_reason(error: ValidationError) -> str:
    text = str(error).partition(" - at `")[0].replace("`", "")
    return text[:1].lower() + text[1:]
