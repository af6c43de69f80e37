# make demo: set up and run the main job. make check: lint, types, floors and fast tests, for daily work.
# make test: set up and run every check. make measure: what trains at length or sweeps by brute force; writes evidence.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE # hundreds of processes would compile the package again
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: setup browser demo tree static docs page check test measure gpu paper bench clean

# torch goes first and alone: on a machine without one, the pinned CPU build is enough.
COMPILED := $(wildcard scaling_algebra/counting/[ckm]*.py)
$(BIN)/scalecalc: pyproject.toml constraints.txt setup.py $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install -q -c constraints.txt -e ".[verify,test]"
	touch $@

setup: $(BIN)/scalecalc

# Some tests open a report, a map and the calculator in a headless browser; without one they are skipped.
browser:
	command -v chromium >/dev/null || (apt-get update -q && apt-get install -qy chromium) >/dev/null 2>&1 \
	  || echo "no chromium and no way to install it: the browser test will be skipped"

demo: setup
	$(BIN)/scalecalc derive --regime III --optimizer adam
	$(BIN)/scalecalc table b1
	$(BIN)/scalecalc explain h3.A2.2@1 --regime III --optimizer sgd --parameterization mup
	$(BIN)/scalecalc verify --regime III --optimizer sgd --parameterization mssp

# An installed tree: there `tables` and `verify` are subpackages, so that types, floors and the guide see them.
tree: setup
	rm -rf build && SCALECALC_PURE=1 $(BIN)/pip install -q --no-deps --no-compile --target build/tree .

static: tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	cd build/tree && ../../$(BIN)/lint-imports --config ../../pyproject.toml --no-cache
	cd build/tree && ../../$(BIN)/mypy --cache-dir ../../.mypy_cache --config-file ../../pyproject.toml -p scaling_algebra

check: static
	$(PYTEST) --lane check

test: static docs browser
	$(PYTEST) --lane test

# What tests/measure finds is kept under verify/evidence/measure; `make check` says when the code has moved since.
CAMPAIGNS := quick rays library
measure: setup
	$(BIN)/pytest --lane measure --timeout 7200 tests/measure tests/measure/random_networks.py
	$(BIN)/python benchmarks/floors.py
	for name in $(CAMPAIGNS); do $(BIN)/scalecalc verify --campaign $$name --device cpu -o runs/$$name || exit; done

docs: tree
	$(BIN)/pip install -q -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The calculator, beside the guide; what it is made of is downloaded once, into runs/.
page: setup
	$(BIN)/scalecalc page -o site/calculator --assets runs/page-assets

# One GPU for ten minutes: everything that needs one. Where this cannot be set up, a wheel is enough (docs/guide/measuring.md).
gpu: setup
	$(BIN)/python -m scaling_algebra.verify.commands.gpu -o verify/evidence/gpu

# The runs of the MSSP paper, App. P.1 and Fig. 2, on data without end: 1,000 updates of 50 samples, from N = 128; a GPU, 12 minutes by estimate.
PAPER = $(BIN)/scalecalc study transfer --model benchmarks/paper.py:build --data teacher --set batch=50 --optimizer adam \
	--parameterization mup --parameterization mssp --steps 1000 --seeds 4 --grid=-10,-5 --device cuda
paper: setup
	$(PAPER) --resume runs/paper-II --base N=128,N_e=16,M=8 --size N=256,N_e=16,M=16 --size N=512,N_e=16,M=32 --size N=1024,N_e=16,M=64
	$(PAPER) --resume runs/paper-III --base N=128,N_e=128,M=8 --size N=256,N_e=256,M=16 --size N=512,N_e=512,M=32 --size N=1024,N_e=1024,M=64

bench: setup
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build site *.egg-info
