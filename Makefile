# Every target sets itself up: a fresh clone needs Python >= 3.10, a C++ compiler and a package index.
PYTHON ?= python3
VENV ?= .venv
BENCH ?= .venv-bench
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint bench install clean

install: $(READY)

# torch first and from the constraints file: left to other packages it may bring gigabytes of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch numpy setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/p2l demo

# Files of tests side by side, each as a whole: what is made for a file is made once. In the order of tests/conftest.py,
# which has the long files first, so that none runs alone at the end.
test: $(READY) lint
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# What the benchmarks compare with pins versions of its own, so it gets an environment of its own.
$(BENCH)/.ready: pyproject.toml benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --editable '.[data]' --requirement benchmarks/requirements.txt
	touch $(BENCH)/.ready

bench: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks.leaderboards
	$(BENCH)/bin/python -m benchmarks.simulate
	$(BENCH)/bin/python -m benchmarks.votes
	$(BENCH)/bin/python -m benchmarks.startup

clean:
	rm -rf $(VENV) $(BENCH) .pytest_cache .mypy_cache .ruff_cache
