PYTHON ?= python3
VENV ?= .venv
ARGS ?= --arch sm_89 --tile 128x128x32
INSTALLED := $(VENV)/.installed

.PHONY: help setup generate catalog test test-slow test-all test-oldest verify lint docs docs-check ci-example wheels clean

help:  ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## Install everything into .venv (PYTHON=python3.12 chooses another Python)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is older than 3.10: name another one, as in make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "installing into $(VENV), about 1.1 GB: this takes some minutes" >&2
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

generate: $(INSTALLED)  ## Make kernels: make generate ARGS="--arch sm_89 --tile 128x128x32"
	@$(VENV)/bin/generate $(ARGS)

catalog: $(INSTALLED)  ## Write the lock file of the shipped kernels (generator/catalog), and the golden ones, to emitted
	$(VENV)/bin/python -m generator.catalog emitted

test: $(INSTALLED)  ## Run the tests, except the slow ones
	$(VENV)/bin/python -m pytest -n auto --dist worksteal -m "not slow"

test-slow: $(INSTALLED)  ## Run the slow tests: many kernels, all of CuTe, killed processes, clusters, the site
	$(VENV)/bin/python -m pytest -n auto --dist worksteal -m slow

test-all: $(INSTALLED)  ## Run all tests; CI runs a sample of some (CONTRIBUTING.md)
	$(VENV)/bin/python -m pytest -n auto --dist worksteal $(PYTEST_OPTIONS)

test-oldest:  ## Run the tests with the oldest versions of all dependencies, in a venv of their own
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(VENV)-oldest/bin/python -m uv pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct -e '.[dev]'
	$(VENV)-oldest/bin/python -m pytest -n auto --dist worksteal -m "not slow"

verify: $(INSTALLED)  ## Prove the shipped kernels by running them on the CPU; needs g++ or clang++ (CXX)
	@$(VENV)/bin/python -m generator.cli.prove_catalog $(SAMPLE)

ci-example: $(INSTALLED)  ## Run the CI job of examples/ci here: make, check and export kernels in build/ci
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/python examples/ci/run_here.py build/ci

wheels: $(VENV)/.wheels  ## Build wheels of the generator and of the compiled catalog, in build/wheels (WHEELS="--arch 80,90a")
	$(VENV)/bin/python packaging/build_wheels.py $(WHEELS)

lint: $(INSTALLED)  ## Check style, and the types of the package hgemm and of a client
	$(VENV)/bin/ruff check generator hgemm tests docs benchmarks examples packaging
	$(VENV)/bin/ruff format --check generator hgemm tests docs benchmarks examples packaging
	$(VENV)/bin/python -m mypy

docs: $(VENV)/.docs  ## Build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

docs-check: docs  ## Open every page of the site in Chromium: links, width, console
	$(VENV)/bin/python docs/check_site.py

$(VENV)/.wheels: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[wheels]'
	@touch $@

$(VENV)/.docs: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

clean:  ## Remove the virtual environment, caches, and what was built; measurements stay
	rm -rf $(VENV) $(VENV)-oldest build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis examples/c/fused examples/c/multiply
	rm -rf emitted/failed emitted/index.db* emitted/*/kernel.cubin emitted/*/kernel.ptx emitted/*/record.json
	@[ ! -e .git ] || git clean -fdXq -e '!/emitted/measurements/' emitted  # kernels that are not shipped
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
