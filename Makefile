# Everything a fresh machine needs is Python 3.11 or newer with venv, make, and a C/C++ compiler.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Without ninja, cmake would compile one file at a time.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell getconf _NPROCESSORS_ONLN)

.DEFAULT_GOAL := help
.PHONY: help run demo test test-deaths test-cluster test-registry test-clients test-chaos lint \
  format simulate bench bench-engine bench-relay bench-scheduler bench-library clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'PYTHON=python3.12 make run    chooses the interpreter that .venv is made with'
	@echo 'make test ARGS="-k relay"     hands arguments to pytest'

run: $(VENV)/.installed ## install on first use, then serve on 127.0.0.1:11434 until Ctrl-C
	@$(BIN)/pronk serve

demo: $(VENV)/.installed ## start a server on a free port, ask the built-in model once, stop
	@$(BIN)/pronk demo

# Three at a time on two cores: many tests wait for a process more than they compute.
test: $(VENV)/.installed-test ## run the tests (up to 7 minutes on two cores)
	@$(BIN)/python -m pytest -n 3 --dist loadgroup $(ARGS)

test-deaths: $(VENV)/.installed-test ## kill the processes behind answers under way, and compare every word
	@$(BIN)/python -m pytest -n 3 --dist loadgroup tests/deaths $(ARGS)

test-cluster: $(VENV)/.installed-test ## workers of other hosts, which join over tcp
	@$(BIN)/python -m pytest -n 3 tests/cluster $(ARGS)

test-registry: $(VENV)/.installed-test ## pull, push and hostile registries (needs docker-registry)
	@$(BIN)/python -m pytest -n 2 --dist loadgroup tests/registry $(ARGS)

test-clients: $(VENV)/.installed-test ## other languages' clients (needs nodejs, npm and docker-registry)
	@$(BIN)/python -m pytest tests/clients $(ARGS)

test-chaos: $(VENV)/.installed-test ## kill processes at random, under load (ARGS="--seconds 300 --seed 7")
	@PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)

lint: $(VENV)/.installed-lint ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright

format: $(VENV)/.installed-lint ## bring all files into the one format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

simulate: $(VENV)/.installed-test ## the scheduler's policies on simulated hosts (ARGS="--devices 8")
	@PYTHONPATH=tests $(BIN)/python -m simulator $(ARGS)

bench: bench-engine bench-relay bench-scheduler bench-library ## run all benchmarks and print their tables

bench-engine: $(VENV)/.installed-test ## the whole server beside raw llama.cpp (ARGS="--rows …")
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.bench_engine $(ARGS)

bench-relay: $(VENV)/.installed-test ## a token's way through a frontend (ARGS="--rows …")
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.bench_relay $(ARGS)

bench-scheduler: $(VENV)/.installed-test ## what one decision takes on a very large host
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.bench_scheduler $(ARGS)

bench-library: $(VENV)/.installed-test ## the model library beside the bare disk (ARGS="--rows …")
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.bench_library $(ARGS)

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist *.egg-info .bench .pytest_cache .ruff_cache .hypothesis

# A stamp is older than pyproject.toml exactly when something has to be installed again.

$(VENV)/.installed: pyproject.toml | $(VENV)/.created
	@$(BIN)/python -c 'import llama_cpp' 2>/dev/null || { \
	  command -v "$${CXX:-c++}" >/dev/null || { \
	    echo 'No C++ compiler found. Install one: apt install build-essential, dnf install gcc-c++, or xcode-select --install' >&2; \
	    exit 1; }; \
	  command -v cmake >/dev/null || \
	    echo 'No cmake found: pip fetches one for this build (apt install cmake, dnf install cmake or brew install cmake spares that).'; \
	  echo 'Installing Pronk into $(VENV). This builds llama.cpp from source: 4 to 8 minutes on two cores,'; \
	  echo 'once, because pip keeps the wheel. While pip says "still running", it is compiling.'; }
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(PIP) install --quiet --editable '.[test]'
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed
	@$(PIP) install --quiet --editable '.[lint]'
	@touch $@

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo 'No $(PYTHON) found. Install Python 3.11 or newer, or name yours: make PYTHON=/path/to/python …' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) --version) is too old. Name a Python 3.11 or newer: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '$(PYTHON) lacks venv. Install it: apt install python3-venv' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@
