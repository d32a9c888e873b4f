# Every target sets itself up: a fresh clone needs Python >= 3.10, a C++ compiler and a package index.
PYTHON ?= python3
VENV ?= .venv
BENCH ?= .venv-bench
TOOLS ?= .venv-tools
SITE ?= .venv-site
JS ?= .venv-js
CLIENTS ?= .venv-clients
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
READY := $(VENV)/.ready
AUDIT := $(TOOLS)/bin/pip-audit --strict --disable-pip
TORCH_INDEX ?=
# pip's notes on newer versions of itself are not about this project.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
SUDO ?= $(if $(filter-out 0,$(shell id -u)),sudo -n)
# Of tests: more than cores, since some wait for servers.
PROCESSES ?= 5

# Where PostgreSQL and Redis of tests are, if not installed as services of the machine.
SERVICES ?= .services

.PHONY: services services-stop cluster demo test quick-tests test-slow test-nightly docs-run lint style types bench bench-all install js clients browser tools lock sbom audit dist site clean

install: $(READY)

# Everything but torch comes from the lock, checked against its hashes, setuptools before the rest, because DeepSpeed is
# built here and a build in isolation would fetch one without a hash. torch comes last, pinned but not hashed, because its
# builds differ by index (TORCH_INDEX names another): all it still brings are CUDA libraries, and DeepSpeed, built without
# seeing it, is the same on every machine.
$(READY): pyproject.toml requirements.lock constraints.txt
	@echo "Installing into $(VENV): some minutes at first, seconds after a change of requirements"
	@$(PYTHON) -m venv $(VENV)
	@sed -n '/^setuptools==/,/# via/p' requirements.lock > $(VENV)/setuptools.lock
	@$(PIP) --require-hashes --no-deps --requirement $(VENV)/setuptools.lock
	@$(PIP) --require-hashes --no-deps --no-build-isolation --use-pep517 --requirement requirements.lock
	@$(PIP) --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check > $(VENV)/check.log || { cat $(VENV)/check.log; false; }
	@touch $(READY)

# Clients and agents for JavaScript, which tests speak with where they are there. They need Node.js, and 900 MB; Claude
# Code's own step puts its program in place.
js:
	npm install --prefix $(JS) --no-audit --no-fund --ignore-scripts openai@7.59.0 @anthropic-ai/sdk@1.14.0 ai@7.0.173 \
	  @ai-sdk/openai@4.0.118 @ai-sdk/openai-compatible@3.0.92 @ai-sdk/anthropic@4.0.105 zod@4.6.7 \
	  @anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0
	node $(JS)/node_modules/@anthropic-ai/claude-code/install.cjs

# Clients and agents for Python, likewise.
clients:
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --requirement tests/route/clients/requirements.txt

# Chromium, with which tests open the pages of the services; where it cannot be installed they skip. Its shell has no
# window and takes half of the computing; not every distribution has it.
browser:
	command -v chromium-headless-shell > /dev/null || \
	  $(SUDO) apt-get install --yes --no-install-recommends chromium-headless-shell || \
	  $(SUDO) apt-get install --yes --no-install-recommends chromium

# Both listen on 127.0.0.1 alone, on their usual ports.
services: $(READY)
	$(BIN)/python -m tools.services start $(SERVICES)

services-stop: $(READY)
	$(BIN)/python -m tools.services stop $(SERVICES)

# Three routers behind HAProxy, PostgreSQL, Redis and an endpoint on Ray Serve, with requests through all of it.
cluster: $(READY)
	$(BIN)/python -m tools.cluster

demo: $(READY)
	$(BIN)/p2l demo

# Files of tests side by side, each as a whole: what is made for a file is made once. In the order of tests/conftest.py,
# which has the long files first, so that none runs alone at the end.
# Bytecode is written whatever the machine's setting: tests start hundreds of processes, which would compile it anew.
# Types are checked meanwhile: that is one process, which alone would leave a core without work.
test: $(READY) style
	@$(MAKE) --no-print-directory --jobs 2 types quick-tests

quick-tests: $(READY)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# The same with twenty moments for each kill, which takes hours.
test-nightly: $(READY)
	P2L_FAULT_MOMENTS=20 $(BIN)/python -m pytest -m slow

# The README's blocks as printed, in order, and those of other pages with PAGES=docs/train/live.md.
docs-run: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tools.run_docs $(PAGES)

lint: style types

style: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# What the benchmarks compare with pins versions of its own, so it gets an environment of its own; torch is that of the lock.
$(BENCH)/.ready: pyproject.toml benchmarks/requirements.txt constraints.txt
	$(PYTHON) -m venv $(BENCH)
	grep '^torch==' constraints.txt > $(BENCH)/torch.txt
	$(BENCH)/bin/python -m pip install --quiet --constraint $(BENCH)/torch.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BENCH)/bin/python -m pip install --quiet --constraint $(BENCH)/torch.txt --editable '.[train,serve,cpu,route,replicas,ray,lp,plot,coeval]' --requirement benchmarks/requirements.txt
	touch $(BENCH)/.ready

bench: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks.leaderboards
	$(BENCH)/bin/python -m benchmarks.simulate
	$(BENCH)/bin/python -m benchmarks.votes
	$(BENCH)/bin/python -m benchmarks.startup

# Every benchmark of benchmarks/RESULTS.md in its order, with a time for each: hours. DATA=DIR for those on real votes.
bench-all: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks.all $(if $(DATA),--data $(DATA)) $(if $(ONLY),--only '$(ONLY)')

# What keeps the locks has a lock and an environment of its own: it must run when the other lock is out of date.
$(TOOLS)/.ready: tools/requirements.lock
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --require-hashes --no-deps --requirement tools/requirements.lock
	touch $(TOOLS)/.ready

tools: $(TOOLS)/.ready

# `make lock UPGRADE=--upgrade` takes the newest versions; without, what is locked stays where it still fits.
lock: $(TOOLS)/.ready
	$(TOOLS)/bin/python -m tools.lock $(UPGRADE)

# The bill of materials of the lock and of torch, in CycloneDX's JSON. It says nothing that the lock does not, so it is
# made for a release and not committed.
sbom: $(TOOLS)/.ready
	mkdir -p build
	grep '^torch==' constraints.txt | cat - requirements.lock > build/materials.txt
	$(TOOLS)/bin/cyclonedx-py requirements build/materials.txt --pyproject pyproject.toml --output-reproducible \
	  --output-format JSON --output-file build/sbom.json

# The wheel and the sdist of what is committed; the same commit gives the same wheel.
dist: $(READY)
	$(BIN)/python -m tools.build dist

# The documentation site in build/site; a warning is an error.
$(SITE)/.ready: tools/site-requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --requirement tools/site-requirements.txt
	touch $(SITE)/.ready

site: $(READY) $(SITE)/.ready
	$(BIN)/python -m tools.site build/pages
	$(SITE)/bin/zensical build --strict --clean
	$(BIN)/python -m tools.site_texts build/pages build/site

# Asks a public service about known vulnerabilities, so it needs a network and is no part of `make test`. Strict, because
# what the service does not know would pass as sound. OSV=PATH looks them up in a database on this machine instead: the
# zip, a folder or a file of advisories in OSV's format.
ifdef OSV
audit: $(READY)
	$(BIN)/python -m tools.audit --osv '$(OSV)'
else
audit: $(TOOLS)/.ready
	mkdir -p build
	grep '^torch==' constraints.txt > build/torch.txt
	$(AUDIT) --require-hashes --requirement requirements.lock
	$(AUDIT) --require-hashes --requirement tools/requirements.lock
	$(AUDIT) --no-deps --requirement build/torch.txt
endif

clean:
	rm -rf $(VENV) $(BENCH) $(TOOLS) $(SITE) $(JS) $(CLIENTS) build .pytest_cache .mypy_cache .ruff_cache
