"""Wrong usage of every command: one line that says what is wrong, and exit code 2."""

import shlex

import pytest

from ..shared import scalecalc

SHORT = {
    "CLUSTER": "law switch-cluster",
    "MOE": "law moe-transformer",
    "SUM": "law 'N**-p + N/n' --min N --in n",
    "HORIZON": "recipe --batch 1:1 --optimizer adamw",
    "SMALL": "recipe --base N=64,L=2 --target N=128,L=2",
    "LARGE": "recipe --target N=4096,N_e=1024,M=256,K=8 --base",
    "EACH": "derive --architecture routers-softmax --regime I --without each",
    "FORMULA": "explain --formula",
    "WHY": "explain --regime III",
    "RUN": "verify --regime I --optimizer sgd --parameterization sp --sizes 8,12,18 --seeds 8",
    "TRANSFER": "study transfer --model nowhere.py:build",
}
"""Beginnings of commands."""
WRONG = """
tabel | did you mean 'table'
derive --regime IV | no regime named 'IV'
derive --regime 3 | did you mean 'III'
derive --regime I --optimizer adm | did you mean 'adam'
derive --regime I --format yaml | no format named 'yaml'
derive --ray N=1,M=1 | leaves out N_e
derive --nonsense | No such option
derive --regime I --epsilon negligable | did you mean 'negligible'
derive --regime I --given rotuer.init=1 | did you mean 'router'
derive --regime I --optimizer sgd --given readout.lr=N^1/17 | exponent 1/17 is finer than what is counted
derive --regime I --open | give -o FILE.html too
derive --regime III --json | no option --json; write --format json
derive --regime III --architecture moe-sigmoid --prove | phi; derive --without phi leaves it out
derive --regime I --smtlib x.smt2 | needs --prove
derive --regime I --parameterization sp --prove | derived parameterization
derive --regime I --optimizer lion --prove | cannot prove: lion divides by unknown sizes
derive --regime I --architecture moe-rmsnorm --prove | cannot prove: moe-rmsnorm divides
derive --regime I --readout-init one --prove | readout init
derive --regime I --prove --smtlib /nonexistent/x.smt2 | cannot write
derive --ray N=1,N_e=1,M=1,K=1/2 --parameterization mup --prove | proofs are for K = M
derive --regime III --optimizer adam --table-only --format json | json is complete
derive --regime III --optimizer adam --table-only --prove | prints no proof
derive --regime I --gauge table4 | known: table3, table8, table9
derive --architecture routers-softmax --regime I --without psi | no function 'psi' to leave out
EACH --prove | --without each is a search of its own
EACH --gauge table8 | --without each is a search of its own
EACH --without phi | --without each is a search of its own
signals --regime II --steps -1 | give 0 or more
rays --parameterization sp | no parameterization named 'sp'
rays --prove --parameterization mup --architecture bottleneck --only 'the best' | no theorem is called 'the best'
WHY h3.A22 | no quantity named 'h3.A22'
WHY h3.A1@x | write QUANTITY@t
WHY router.size | no setting named 'size'
WHY expert_out | give expert_out.init, expert_out.lr, expert_out.eps
WHY expert_ou.lr | no tensor named 'expert_ou'; did you mean 'expert_out'
WHY '<h1, dW2>' | inner products are of signals
FORMULA h3.A9@1 | no quantity named 'h3.A9'; did you mean 'h3.A3'?
FORMULA h3@9 | a formula reaches 4 updates
FORMULA h3@1 --structure 'tied input' | it has no expert index
FORMULA h3@1 --structure tied, | cannot read 'tied' in the structure
FORMULA h3@1 --structure , | cannot read '' in the structure
FORMULA h3@1 --structure 'zero inptu' | did you mean 'input'?
FORMULA hn@1 --architecture moe-rmsnorm | rmsnorm of h3 depends on the size of its argument
FORMULA h3@1 --fixed Q | no axis of moe named 'Q'
FORMULA h2@1 --architecture mlp --fixed N | nothing of mlp grows
FORMULA h2@1 --optimizer adafactor | relative to the size of the tensor
FORMULA h2.update.normalised@1 | a quotient of maxima is none
law moe | no law named 'moe'
law nope.toml | cannot read nope.toml
law N**-1 --min N --in 2 | no name
MOE --at x=1 | no parameter or quantity of this law
MOE --invert x | cannot read
MOE --invert x=1 | no exponent named
MOE --min N | a law has no minimise
MOE --reach eps | one axis
SUM --invert x=1 | is about a law
SUM --axis data | a sum has no axis
SUM --at p=-1 | positive
SUM --at p | cannot read
CLUSTER --axis x | assumptions has no axis
CLUSTER --at K=d,K=d | each name once
CLUSTER --at Q=d | no quantity to set named 'Q'
CLUSTER --at K=Q | no quantity named 'Q'
CLUSTER --at K=M,M=d | in what is given itself
CLUSTER --at 'K=d**(k*k)' | not linear
CLUSTER --at K=d**9**9 | an exponent is too large
CLUSTER --drop nope | no assumption named 'nope'
recipe --hold all,none | all holds every invariant
recipe --batch 1:1 --hold timescale --optimizer adam | no invariant of adam named 'timescale'
recipe --batch 1:1 --base eps=1 --optimizer sgd | which sgd does not have
HORIZON --axes Q | no axis named 'Q'
HORIZON --batch 256 | give two numbers, as 256:1024
HORIZON --batch 0:1 | positive
HORIZON --base lr | each name once with its value
HORIZON --base lr=x | is no number
HORIZON --base beta2=1.5 | out of range
HORIZON --base rate=1 | no base value named 'rate'
HORIZON --base beta2=0.5 --batch 1:8 | 1 - beta2 would become 4
HORIZON --axes B --tokens 1:2 | tokens changes
LARGE N=4096,N_e=1024,M=256,K=8 | the same sizes
LARGE N=9999,N_e=9999,M=999,K=8 | the base is larger than the target
LARGE N=8,M=4 | the base leaves it out
LARGE N=1024,N_e=0,M=64 | N_e of the base is 0
LARGE N=1024,N_e=8,M=4,K=8 | only M experts can be active
LARGE N=1024,N=2 | each name once
LARGE N=4² | not an integer
LARGE N=4,2q=4 | no axis in the base
LARGE nowhere.toml | cannot read nowhere.toml
recipe --base N=8,M=4 --target N=16,M=8 | leave out N_e (expert width), which deep-moe has
recipe --base M=4 --target M=8 | leave out N (width)
recipe --base N=4,Q=4 --target N=8,Q=8 | no axis of deep-mlp named 'Q'
recipe --hold sde --lr 1 | --lr is of a model
SMALL --experts | without sizes
SMALL --hold sde | hold is about batch and tokens
SMALL --hold halflife --batch 1:2 | did you mean 'half-life'
SMALL --optimizer muon+adamw --hold averages --batch 1:2 | no invariant of muon named 'averages'
SMALL --lr 0 | lr is 0.0; give a positive number
SMALL --lr nope=1 | no tensor in lr named 'nope'
SMALL --lr x | cannot read --lr 'x'
SMALL --std =1 | cannot read --std '=1'
SMALL --lr 1 --lr 2 | the value of all tensors twice
SMALL --optimizer sgd --eps 1e-8 | sgd has no epsilon
SMALL --optimizer adam --decay 0.1 | adam has no decoupled weight decay
SMALL --architecture mlp --network x.toml | leave out one of them
SMALL --base-hf x.json | give either --base
table | Missing argument
table b7 | no table named 'b7'
table b1 --all | give one of them
table --all --format html | --format goes with one printed table
table b1 -o /nonexistent/b1.md | cannot write
table --all -o pyproject.toml | cannot write into
audit nofile.toml | scalecalc: cannot read nofile.toml: No such file or directory; give a TOML file
audit --source msp | no source named
audit --implementations --source megatron | did you mean 'megatron-lm'
audit --implementations --source routers | no implementation named 'routers'
audit --implementations --measure | leave it out with --implementations
verify --regime I --sizes 8,16 | at least 3
verify --regime I --sizes a,b | cannot read the sizes
verify --regime I --claim h3=x | give a rational
verify --regime I --claim h9@1=0 | no measured quantity named
verify --regime III --sizes 8,12,18 --claim '<dW2@1, dW2@1>@1=0' | not of tensors
verify --regime I -o /nonexistent/r.json | is not a folder
verify --regime I -o x.docx --sizes 8,12,16 | cannot tell the format of x.docx
verify --regime I --optimizer sgd --epsilon derived | sgd has no epsilon
verify --regime I --device tpu --sizes 8,12,16 | no device named
verify --regime I --optimizer adafactor --sizes 8,12,16 | adafactor cannot be trained
verify --campaign quick --regime III | leave out --regime
verify --resume x -o y | leave out --output
verify --regime III --sizes 8,12,18 --max-memory 1KiB | more than --max-memory
RUN --workers 2 --scheduler x:1 | leave out --workers
RUN --shard 3/2 | write for example 2/8
RUN --shard 1/2 | needs -o DIR
RUN --scheduler nowhere | cannot reach a scheduler
RUN --scheduler pyproject.toml | cannot reach a scheduler
TRANSFER --grid=-4,-10 | three rates or more
TRANSFER --decay 0 | the weight decay is '0'
TRANSFER --rate embed | write PATTERN=FACTOR
TRANSFER --rate embed=x | factor of embed
TRANSFER --plot rates.pdf | give FILE.png
TRANSFER --dtype half | no dtype named 'half'
TRANSFER --parameterization mop | did you mean 'mup'
TRANSFER --widths 64 | no file nowhere.py
study roters | did you mean 'routers'
study limt | did you mean 'limit'
study limit --regime I --optimizer sgd --parameterization mup --sizes 64,128,3000000 | give smaller --sizes
study routers transfer | write scalecalc study transfer, the name first
study clusters --sizes 8,16,32 | clusters has a fixed size
study routers --only 'SGD: saturates' --sizes 8,9,10 | n / 4, so give larger ones
study routers --only relu | title; see scalecalc study --list
"""
"""Commands, from the root of the repository, and words of what they say."""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_wrong_usage_is_one_line(line, request, monkeypatch):
    monkeypatch.chdir(request.config.rootpath)
    command, _, words = line.rpartition(" | ")
    first, _, rest = command.partition(" ")
    found = scalecalc(*shlex.split(f"{SHORT.get(first, first)} {rest}"))
    assert found.exit_code == 2 and words in found.stderr and found.stderr.count("\n") == 1, found.output
