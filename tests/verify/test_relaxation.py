"""The parameterization that breaks least, measured: what must not vanish does not, and what falls short does."""

from click.testing import CliRunner

from scaling_algebra import relax
from scaling_algebra.cli import main

NARROW = ["--architecture", "bottleneck", "--ray", "N=1,N_e=1/2", "--optimizer", "sgd", "--parameterization", "mup"]


def test_a_bottleneck_learns_but_for_its_up_projection():
    d = relax(ray="N=1,N_e=1/2", optimizer="sgd", parameterization="mup", architecture="bottleneck")
    given = [f"{role}.init={t.init_std}" for role, t in d.tensors.items()]
    given += [f"{role}.lr={t.lr}" for role, t in d.tensors.items()]
    claims = ["h1.change@2=0", "h3.change@2=0", "h3.propagating@2=0", "h3.cross@2=0"]
    asked = [x for power in given for x in ("--given", power)] + [x for claim in claims for x in ("--claim", claim)]
    sizes = ["--sizes", "64,256,1024", "--seeds", "48", "--device", "cpu"]
    result = CliRunner().invoke(main, ["verify", *NARROW, *asked, *sizes])
    verdicts = {line.split()[0]: line for line in result.output.split("claims:")[0].splitlines() if " 2 " in line}
    assert all("AGREES" in verdicts[x] for x in ("h1.change", "h3.change", "h3.propagating")), result.output
    assert "REFUTED" in verdicts["h3.cross"], result.output
