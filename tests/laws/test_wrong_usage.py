"""Wrong usage of the commands for laws, recipes and tables: one line that says what is wrong, and exit code 2."""

import shlex

import pytest
from click.testing import CliRunner

from scaling_algebra.cli import main

CLUSTER, MOE, BALANCE = "law switch-cluster", "law moe-transformer", "law 'N**-p + N/n' --min N --in n"
BASE, TARGET = "N=1024,N_e=512,M=64,K=8", "N=4096,N_e=1024,M=256,K=8"
HORIZON, SMALL = "recipe --batch 1:1 --optimizer adamw", "recipe --base N=64,L=2 --target N=128,L=2"


def sizes(base, target=TARGET):
    return f"recipe --base {base} --target {target}"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("law moe", "no law named 'moe'"),
        ("law chinchilla --choose rate=fast", "chinchilla has no option rate"),
        (f"{MOE} --choose rate=fast --choose rate=slow", "cannot read --choose 'rate=slow'"),
        (f"{MOE} --at x=1", "no parameter of this law"),
        (f"{MOE} --invert x", "cannot read"),
        (f"{MOE} --invert x=1", "no exponent named"),
        (f"{MOE} --min N", "a law has no minimise"),
        (f"{MOE} --reach eps", "one axis"),
        (f"{MOE} --check n=1", "about one minimum"),
        (f"{BALANCE} --invert x=1", "is about a law"),
        (f"{BALANCE} --axis data", "a sum has no axis"),
        ("law N**-1 --min N --in 2", "no name"),
        (f"{BALANCE} --at p=-1", "positive"),
        (f"{BALANCE} --at p", "cannot read"),
        ("law nope.toml", "cannot read nope.toml"),
        (f"{CLUSTER} --at K=1", "assumptions has no at"),
        (f"{CLUSTER} --set K", "each name once"),
        (f"{CLUSTER} --set K=d --set K=d", "each name once"),
        (f"{CLUSTER} --set Q=d", "no quantity to set named 'Q'"),
        (f"{CLUSTER} --set d=K", "no quantity to set named 'd'"),
        (f"{CLUSTER} --set K=Q", "no quantity named 'Q'"),
        (f"{CLUSTER} --set K=M --set M=d", "in what is given itself"),
        (f"{CLUSTER} --set 'K=d**(k*k)'", "not linear"),
        (f"{CLUSTER} --set 'K=d**9**9'", "an exponent is too large"),
        (f"{CLUSTER} --drop nope", "no assumption named 'nope'"),
        (f"{HORIZON} --hold nope", "no invariant of adamw named 'nope'"),
        ("recipe --batch 1:1 --hold timescale --optimizer adam", "no invariant of adam named 'timescale'"),
        ("recipe --batch 1:1 --optimizer adm", "did you mean 'adam'"),
        (f"{HORIZON} --axes Q", "no axis named 'Q'"),
        (f"{HORIZON} --batch 256", "give two numbers, as 256:1024"),
        (f"{HORIZON} --batch 0:1", "positive"),
        (f"{HORIZON} --tokens 1:nan", "two numbers"),
        (f"{HORIZON} --base lr", "is no number"),
        (f"{HORIZON} --base beta2=1.5", "out of range"),
        (f"{HORIZON} --base rate=1", "no base value named 'rate'"),
        (f"{HORIZON} --base lr=1,lr=2", "twice"),
        ("recipe --batch 1:1 --base eps=1 --optimizer sgd", "which sgd does not have"),
        (f"{HORIZON} --base beta2=0.5 --batch 1:8", "1 - beta2 would become 4"),
        (f"{HORIZON} --axes B --tokens 1:2", "tokens changes"),
        (sizes(BASE, BASE), "the same sizes"),
        (sizes(TARGET, BASE), "the base is larger than the target"),
        (sizes("N=8,M=4"), "the base leaves it out"),
        (sizes("N=8,M=4", "N=16,M=8"), "leave out N_e (expert width), which deep-moe has"),
        (sizes("N=1024,N_e=0,M=64"), "N_e of the base is 0"),
        (sizes("N=1024,N_e=8,M=4,K=8"), "only M experts can be active"),
        (sizes("N=1024"), "the base leaves it out"),
        (sizes("M=4", "M=8"), "leave out N (width)"),
        (sizes("N=1024,N=2"), "N twice"),
        (sizes("N=4²"), "not an integer"),
        (sizes("N=4,Q=4", "N=8,Q=8"), "no axis of deep-mlp named 'Q'"),
        (sizes("N=4,2q=4"), "no axis in the base"),
        (sizes("N=4,R=4"), "no axis in the base"),
        (sizes("nowhere.toml"), "cannot read nowhere.toml"),
        (f"{SMALL} --hold sde", "hold is about batch and tokens"),
        (f"{SMALL} --hold halflife --batch 1:2", "did you mean 'half-life'"),
        (f"{SMALL} --optimizer muon+adamw --hold averages --batch 1:2", "no invariant of muon named 'averages'"),
        (f"{SMALL} --lr 0", "lr is 0.0; give a positive number"),
        (f"{SMALL} --lr nope=1", "no tensor in lr named 'nope'"),
        (f"{SMALL} --lr x", "cannot read --lr 'x'"),
        (f"{SMALL} --lr 1 --lr 2", "the value of all tensors twice"),
        (f"{SMALL} --optimizer sgd --eps 1e-8", "sgd has no epsilon"),
        (f"{SMALL} --optimizer adam --decay 0.1", "adam has no decoupled weight decay"),
        (f"{SMALL} --architecture mlp --network x.toml", "leave out one of them"),
        (f"{SMALL} --base-hf x.json", "give either --base"),
        ("table", "Missing argument"),
        ("table b1 --all", "give one of them"),
        ("table --all --format html", "--format goes with one printed table"),
        ("table b3 --check", "no table named 'b3'"),
        ("table b1 --format pdf", "no format named 'pdf'"),
        ("table g2 -o /nowhere/g2.md", "cannot write"),
        ("table g2 -o g2.pdf", "cannot tell the format of g2.pdf"),
        (f"table --all -o {__file__}", "cannot write into"),
        ("table g1 --ray N=1,N_e=1,M=1", "--ray goes with the table b1"),
        ("table --all --ray N=1,N_e=1,M=1", "--ray goes with the table b1"),
        ("audit --source msp", "no source named"),
        ("audit --format x", "no format"),
        ("audit --implementations --source megatron", "did you mean 'megatron-lm'"),
        ("audit --implementations --source routers", "no implementation named 'routers'"),
        ("audit --implementations --measure", "leave it out with --implementations"),
    ],
)
def test_wrong_usage_is_one_line(command, words):
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == 2 and words in result.stderr and result.stderr.count("\n") == 1, result.output
