# Every target sets itself up: a fresh clone needs Python >= 3.10, a C++ compiler and a package index.
PYTHON ?= python3
VENV ?= .venv
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

test: $(READY) lint
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m pip install --quiet --requirement benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.leaderboards
	$(BIN)/python -m benchmarks.simulate

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
