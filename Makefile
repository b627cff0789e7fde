# `make` lists what can be done. Everything installs what it needs into $(VENV) first.

PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/quickstart.toml
RUNS ?= runs
WORKERS ?= 2
ARGS ?=
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install --quiet --no-compile
# Numbers are reproducible and cores are not oversubscribed with one thread per test process. Many
# tests start a process that imports torch: from bytecode, which pip was told not to write. Threads
# that wait for others sleep, since the other test process needs the core.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(RUN) -m pytest -q
# The Pythons beside 3.11 that pyproject.toml promises; where one is installed it compiles the code.
NEWER := 3.12 3.13
# Each worker begins with one half of the files, so that what a file caches is computed once.
PARALLEL := -n $(WORKERS) --dist worksteal
HERE := not ray and not deployment and not gpu$(if $(MANIFED_DATA),, and not data)
FAST := not slow and $(HERE)
# The instructions that every x86-64 processor has, so that no test needs the digits of one machine.
WITHOUT_NUMBERS := application attacks deployment experiment federation flower mutants runs site
PLAIN := ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

# -- set-up ----------------------------------------------------------------------------------
# The CPU build of torch goes in first, from whatever index has it (a local one, then PyTorch's own),
# so that no resolver ever picks the CUDA build and its libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v < (3, 11) and sys.exit("Expected Python >= 3.11, got %d.%d; name one: make PYTHON=python3.11" % v[:2])'
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)+cpu' -c constraints.txt 2>/dev/null || $(PIP) '$(TORCH)' --index-url $(TORCH_INDEX)
	$(PIP) --editable '.[all]' -c constraints.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[all,dev]' -c constraints.txt
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) --editable '.[all,docs]' -c constraints.txt
	@touch $@

.PHONY: install dev
install: $(VENV)/.installed ## Make .venv with the CPU build of torch and this project
dev: $(VENV)/.installed-dev ## The same with the tools for tests and checks

# -- use -------------------------------------------------------------------------------------
.PHONY: quickstart reproduce bench evidence claims
quickstart: $(VENV)/.installed ## Run configs/quickstart.toml (another one: CONFIG=...)
	$(RUN) simulation.py $(CONFIG)

reproduce: $(VENV)/.installed ## Run a paper's figure and draw it: FIG=000-1 (FIG=--list names all)
	@test -n "$(FIG)" || { echo 'Expected FIG=<paper>-<figure>, for example: make reproduce FIG=000-1'; exit 2; }
	$(RUN) -m reproduction $(if $(filter --%,$(FIG)),$(FIG),figure:$(FIG)) --out $(RUNS) $(ARGS)

bench: $(VENV)/.installed-dev ## Run the benchmarks, one script per claim
	@set -e; for script in $(wildcard benchmarks/*.py); do \
	  echo "== $$script"; $(RUN) "$$script"; done

evidence: $(VENV)/.installed-dev ## Write the tables that take longer than the gate (half an hour)
	@set -e; for name in hostile_replies kills guard_kills growing_engines; do \
	  echo "== $$name"; $(RUN) -m tests.robustness.$$name --out tests/robustness/results; done
	$(RUN) -m tests.attacks.shipped --out tests/robustness/results

claims: $(VENV)/.installed-dev ## Check all claims of the papers over ten seeds and write their pages (hours; resumes)
	$(RUN) -m reproduction --all --seeds 0-9 --archive docs/experiments/judged.json
	$(RUN) -m reproduction.judged docs/experiments

.PHONY: docs
docs: $(VENV)/.installed-docs ## Build the site into build/site, without a network; open build/site/index.html
	$(RUN) -W ignore -m sphinx -b html -W --keep-going -q -j $(WORKERS) -c docs -d build/doctrees . build/site
	$(RUN) docs/links.py build/site

# -- tests and checks ------------------------------------------------------------------------
.PHONY: test check size versions portable mutants stats slow ray deployment gpu golden
test: $(VENV)/.installed-dev ## The whole fast suite (MANIFED_DATA=DIR adds the data tests)
	$(PYTEST) -m '$(FAST) and not seconds' $(PARALLEL) $(ARGS)

check: $(VENV)/.installed-dev ## Format, lint, types, the import contracts and the budget of size
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(VENV)/bin/pyright --pythonpath $(RUN)
	$(VENV)/bin/lint-imports
	$(RUN) -m tests.house.size --check

size: $(VENV)/.installed-dev ## Count tokens, names and modules, a package a line
	$(RUN) -m tests.house.size $(ARGS)

versions: $(VENV)/.installed-dev ## Types under the newest Python, bytecode under the newer ones
	$(VENV)/bin/pyright --pythonpath $(RUN) --pythonversion $(lastword $(NEWER))
	@set -e; for version in $(NEWER); do \
	  export PYENV_VERSION=$$version PYTHONPYCACHEPREFIX=$(abspath $(VENV))/bytecode; \
	  if python$$version --version 2> /dev/null; then \
	    python$$version -W error -m compileall -qf manifed app simulation.py; \
	  else echo "Python $$version is not installed: types only"; fi; \
	done

portable: $(VENV)/.installed-dev ## Its tests of numbers with the digits of another processor
	$(PLAIN) $(PYTEST) -m '$(FAST)' $(WITHOUT_NUMBERS:%=--ignore=tests/%) $(PARALLEL) $(ARGS)

mutants: $(VENV)/.installed-dev ## Plant faults one at a time; the tests must see every one (ARGS=--new: see sweep.py)
	PYTHONDONTWRITEBYTECODE= $(RUN) tests/mutants/sweep.py --workers $(WORKERS) $(ARGS)

stats: $(VENV)/.installed-dev ## The exact-law tests of noise and sampling
	$(PYTEST) -m statistical $(ARGS)

slow: $(VENV)/.installed-dev ## The tests that take more than a second, and those of extras
	$(PYTEST) -m '(slow or seconds) and $(HERE)' $(PARALLEL) $(ARGS)
	MANIFED_PLUGINS=manifed_extras $(PYTEST) -m '$(HERE)' $(PARALLEL) extras/tests $(ARGS)

ray: $(VENV)/.installed-dev ## The tests on Flower's simulation engine
	$(PYTEST) -m ray $(PARALLEL) $(ARGS)

deployment: $(VENV)/.installed-dev ## The tests with a real SuperLink and SuperNodes on loopback
	$(PYTEST) -m deployment $(PARALLEL) $(ARGS)

gpu: $(VENV)/.installed-dev ## The tests that need a CUDA device
	$(PYTEST) -m gpu $(ARGS)

golden: $(VENV)/.installed-dev ## The tests against stored numbers and the papers' tables
	$(PYTEST) -m golden $(ARGS)

# -- the rest --------------------------------------------------------------------------------
.PHONY: clean
clean: ## Remove the virtual environment, caches and builds (run folders stay)
	rm -rf $(VENV) build dist *.egg-info *.fab .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
