"""The map of MSSP: that of today is what is emitted and what the page keeps, and it is two walls."""

from scaling_algebra import phases

from ..engine import test_phases

DEPENDS = ("derives", "scaling_algebra/all_rays", "tests/engine/test_phases.py")


def test_the_map_of_mssp_is_that_of_today(monkeypatch):
    test_phases.test_what_is_emitted_and_what_the_page_keeps_is_todays_map("sgd", "mssp", monkeypatch)


def test_mssp_lives_on_two_walls():
    """MSSP is found on no generic ray, but on N_e = N with tied experts and on M + N_e = N with a free h3i."""
    mssp = phases("sgd", "mssp")
    assert all(c.scaling is None for c in mssp.cells)
    for edge in mssp.edges:
        if edge.name == "M = N":
            assert edge.scaling is None
        elif edge.name == "N_e = N":
            assert edge.scaling is not None and set(edge.scaling.tied) == {"expert_in", "expert_out"}
        else:
            assert edge.scaling is not None and "h3i free" in edge.structure
            out = edge.scaling.tensors["expert_out"].init_std
            assert out.on(edge.ray) == (edge.ray["M"] - edge.ray["N_e"]) / 2
