"""Every theorem on whole cones of rays that takes more than a few seconds; of minutes: ``test_cones.py``."""

from dataclasses import replace

import pytest

from scaling_algebra.all_rays.claims import decide_nowhere
from scaling_algebra.spec.desiderata import enumerate_structures
from scaling_algebra.spec.networks.library import MOE_BLOCK

from ..engine.test_theorems import MSSP, WALLS, ZERO_ROUTER, answer, few_active, mssp_on_walls, off_walls

DEPENDS = ("proves", "scaling_algebra/all_rays", "tests/engine/test_theorems.py")


@pytest.mark.parametrize("name", ["B exists", "D exists", "E exists", "B exists, M fixed"])
def test_mup_exists_on_whole_cells(name):
    """C: ``tests/engine/test_theorems.py``."""
    assert "checked on the rays that span the cone" in answer(name).why


def test_mssp_exists_on_walls():
    mssp_on_walls("sgd")


def test_where_few_experts_are_active():
    few_active("sgd")


def test_mssp_is_unique_on_a_wall_and_nowhere_beside_it():
    """N_e = N with tied experts; negative control: off the other wall alone, one is found on this one."""
    answer("b unique", "mssp")
    tied = next(
        s for s in enumerate_structures(MOE_BLOCK, MSSP.base_structure(MOE_BLOCK)) if len(s.tied) == 2 and not s.exempt
    )
    found = decide_nowhere(MOE_BLOCK, MSSP, replace(tied, zero=ZERO_ROUTER.zero), off_walls(WALLS[1]))
    assert found.verdict == "refuted"
