# Two commands do the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VARIANT ?= sm35-avx-py311
PACKAGE ?= canary
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')  # tests wait now and then
# Tests start the farm some hundred times: it should not be compiled for each.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test lint unit integration e2e fuzz distributions installed bench lock generate clean

help:  ## list the targets
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 8

# --no-compile: what is imported is compiled then.
$(VENV)/.installed: pyproject.toml requirements.lock requirements-build.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("farm: needs Python 3.11 or newer, and " + sys.executable + " is Python " + sys.version.split()[0] + "\nnext: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check --require-hashes -r requirements.lock -r requirements-build.lock
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.installed requirements-dev.lock
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@

demo:  ## from nothing to a smoke-tested wheel: the main job, end to end
	tools/docker-engine ensure  # first: without an engine there is nothing to install for
	$(MAKE) --no-print-directory $(VENV)/.installed
	$(BIN)/farm submit --variant $(VARIANT) --package $(PACKAGE)
	@echo "next: the line above installs the test package; $(BIN)/farm detect names the wheel for this machine, $(BIN)/farm plan --variant sm35-avx-py311 says what PyTorch for a Tesla K40 takes, docs/tutorials/your-package.md is for a package of yours" >&2

test: lint unit  ## lint, unit and golden tests: no root, no system packages

lint: $(VENV)/.dev
	@echo "lint: ruff, mypy, import-linter (about a minute)"
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 farm/base/processes.py farm/base/locks.py farm/engines/host.py farm/run/journal.py
	$(BIN)/lint-imports --no-logo

unit: $(VENV)/.dev
	@echo "unit and golden tests: $$(ls tests/unit | tr '\n' ' ')(minutes; the slowest are named at the end)"
	$(BIN)/pytest -q --durations 5 --dist worksteal -n $(WORKERS)

integration: $(VENV)/.dev  ## slower tests over real S3 servers, web servers and GitHub's stand-in: no root, no system packages
	$(BIN)/pytest -q --dist worksteal -n $(WORKERS) tests/integration

fuzz: $(VENV)/.dev  ## new inputs for every parser, besides the recorded ones
	FARM_FUZZ_RUNS=$${FARM_FUZZ_RUNS:-100000} $(BIN)/pytest -q tests/e2e/fuzz/test_fuzz.py

e2e: $(VENV)/.dev  ## integration tests and everything else, on real parts: Docker, nvcc, emulated CPUs; installs what it needs
	tests/e2e/run $(BIN)

distributions:  ## `make test` in containers of Debian 12, 13, testing and Ubuntu 24.04, with their own Python
	tests/distributions

installed:  ## the farm's wheel (or FILES), installed into a clean environment and used in an empty folder
	for file in $(or $(FILES),.); do tests/installed $(PYTHON) $$file || exit 1; done

bench: $(VENV)/.dev  ## tables of times
	$(BIN)/python tests/bench/overhead.py
	$(BIN)/python tests/bench/site.py

lock: $(VENV)/.dev  ## renew the locked versions
	$(BIN)/uv pip compile -q --generate-hashes --no-strip-extras --no-header --universal --python-version 3.11 pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile -q --generate-hashes --no-strip-extras --no-header --universal --python-version 3.11 --extra dev --extra fast pyproject.toml -o requirements-dev.lock
	sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(BIN)/uv pip compile -q --generate-hashes --no-header --no-annotate --python-version 3.11 - -o requirements-build.lock

generate: $(VENV)/.dev  ## regenerate what is derived from the code: the schemas of ci/, docs/reference/, the table of channels in docs/evidence, docs/pictures
	$(BIN)/python -m tools.matrix_schema
	$(BIN)/python -m tools.runners_schema
	$(BIN)/python -m tools.options_page
	$(BIN)/python -m tools.features_page
	$(BIN)/python -m tools.channel_table
	$(BIN)/python -m tools.engine_table
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.pictures
	$(BIN)/python -m tools.screenshots

clean:  ## remove what runs and tests left in the checkout
	rm -rf artifacts .venv build dist *.egg-info
