"""Every theorem on whole cones of rays that takes minutes, and the map that does; the fast ones are in
``tests/engine/test_theorems.py`` and ``test_phases.py``."""

import json

import pytest

from scaling_algebra.all_rays.claims import list_claims
from scaling_algebra.page.maps import draw_map, load_maps

from ..engine.test_theorems import answer, face, few_active, known, mssp_on_walls

DEPENDS = ("proves", "scaling_algebra/all_rays", "tests/engine/test_theorems.py")


@pytest.mark.parametrize("name", ["A none", "B unique", "C unique", "D unique", "E unique"])
def test_mup_is_unique_on_whole_cells_and_only_there(name):
    """Result 1 of the MSSP paper."""
    answer(name)


def test_residual_mup_exists_on_the_cells_of_the_block():
    """The walls of the block, found without its map."""
    found = list_claims(face(network="residual"), ["cover"])
    where = {str(claim.where) for name, claim in found.items() if name.endswith(" exists")}
    assert where == {str(claim.where) for name, claim in known().items() if name.endswith(" exists")}
    for name in (*(f"{x} exists" for x in "BCDE"), "cover"):
        assert found[name].decision.verdict == "proved"


def test_mssp_of_adam_exists_on_walls():
    mssp_on_walls("adam")


def test_where_few_experts_are_active_under_adam():
    few_active("adam")


def test_no_mssp_of_a_fixed_number_of_experts_with_any_structure():
    found = list_claims(face("mssp"), ["a exists, M fixed"])
    nones = [claim for name, claim in found.items() if name.startswith("none")]
    assert len(nones) == 16 and {claim.decision.verdict for claim in nones} == {"proved"}


def test_the_map_of_adam_and_mssp_that_the_page_keeps_is_that_of_today():
    assert json.loads(json.dumps(draw_map("adam", "mssp"))) == load_maps()["adam-mssp"]
