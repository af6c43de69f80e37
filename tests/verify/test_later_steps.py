"""What is proved for every step, measured beyond the steps that are examined exactly."""

from click.testing import CliRunner

from scaling_algebra.cli import main

CLAIMS = {"h1.change": "0", "psi.change": "0", "h3.change": "0", "h3.A1": "0", "h3.A2.2": "0", "f": "0", "gW2": "-2"}


def run(claims):
    asked = ["verify", "--regime", "III", "--optimizer", "adam", "--parameterization", "mssp", "--steps", "8"]
    asked += ["--sizes", "16,32,64", "--seeds", "16", "--device", "cpu"]
    return CliRunner().invoke(main, [*asked, *(x for name, e in claims.items() for x in ("--claim", f"{name}@8={e}"))])


def test_exponents_after_eight_updates():
    result = run(CLAIMS)
    assert f"claims: {len(CLAIMS)} of {len(CLAIMS)} exponents agree" in result.output, result.output


def test_wrong_ones_are_refuted():
    """The negative control."""
    result = run({"h3.change": "1/2", "gW2": "-3/2"})
    assert "claims: 0 of 2 exponents agree, 2 refuted" in result.output, result.output
