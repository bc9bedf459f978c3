# Everything is made inside this folder. `make help` lists the targets.
#
#   PYTHON=python3.12     the interpreter that the virtual environments are made from
#   PYTEST_ARGS="-k name" arguments for pytest
#   PIP_NO_CACHE_DIR=0    lets pip use its download cache, which lies outside this folder

PYTHON ?= python3
PYTEST_ARGS ?=

export PIP_NO_CACHE_DIR ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export PIP_PREFER_BINARY ?= 1

# Twice quiet: only errors are shown.
PIP_INSTALL = -m pip install -qq
# Keras writes its settings at import, and would read the user's own: both belong in the environment.
KERAS_HOME_IN = KERAS_HOME="$(CURDIR)/$(1)/keras"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint test-oldest parity bench-kernels bench-data convergence clean

help:
	@echo 'make demo         train on handwritten digits with two workers'
	@echo 'make test         lint, types and tests'
	@echo 'make lint         lint and types alone'
	@echo 'make test-oldest  the tests with the oldest supported TensorFlow and Keras'
	@echo 'make parity       write docs/parity.md: what every strategy gives beside one device'
	@echo 'make bench-kernels  how long compressors compute, beside a copy'
	@echo 'make bench-data   how fast sharded data are read, beside a pipeline by hand'
	@echo 'make convergence  write docs/convergence.md: accuracy, steps and seconds under every compressor; some 20 minutes'
	@echo 'make clean        remove the environments, caches and builds'

demo: .venv/.installed-examples
	@$(call KERAS_HOME_IN,.venv) TFDP_CACHE="$(CURDIR)/.venv/cache" .venv/bin/tfdp demo

# Tests that start few processes or none run side by side, each file on one core; the others have the machine to themselves.
SIDE_BY_SIDE = tests/benchmarks tests/callbacks tests/compression tests/data tests/topology

# $(call run-tests,FOLDER): all tests in the environment FOLDER, or those that PYTEST_ARGS choose.
ifeq ($(strip $(PYTEST_ARGS)),)
define run-tests
	@status=0; \
	export $(call KERAS_HOME_IN,$(1)) TFDP_CACHE="$(CURDIR)/$(1)/cache"; \
	$(1)/bin/python -m pytest -n 2 --dist loadfile $(SIDE_BY_SIDE) || status=$$?; \
	$(1)/bin/python -m pytest $(addprefix --ignore=,$(SIDE_BY_SIDE)) || status=$$?; \
	exit $$status
endef
else
define run-tests
	$(call KERAS_HOME_IN,$(1)) TFDP_CACHE="$(CURDIR)/$(1)/cache" $(1)/bin/python -m pytest $(PYTEST_ARGS)
endef
endif

test: lint
	$(call run-tests,.venv)

lint: .venv/.installed-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

test-oldest: .venv-oldest/.installed
	$(call run-tests,.venv-oldest)

parity: .venv/.installed-test
	$(call KERAS_HOME_IN,.venv) TFDP_CACHE="$(CURDIR)/.venv/cache" PYTHONPATH=tests .venv/bin/python tests/parity_table.py

bench-kernels: .venv/.installed-test
	env $$(.venv/bin/tfdp env) $(call KERAS_HOME_IN,.venv) .venv/bin/python tests/benchmarks/kernels.py

bench-data: .venv/.installed-test
	env $$(.venv/bin/tfdp env) $(call KERAS_HOME_IN,.venv) .venv/bin/python tests/benchmarks/data_throughput.py

convergence: .venv/.installed-benchmarks
	env $$(.venv/bin/tfdp env) $(call KERAS_HOME_IN,.venv) .venv/bin/python tests/benchmarks/convergence.py

clean:
	rm -rf .venv .venv-oldest .cache build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -type d -name __pycache__ -exec rm -rf {} +

# An installation is redone when what it depends on has changed.
.venv/.installed-%: setup.cfg pyproject.toml | .venv/bin/python
	@echo 'Installing tfdp[$*], TensorFlow and Keras into .venv: a few minutes the first time.'
	@.venv/bin/python $(PIP_INSTALL) --editable '.[$*]'
	@touch $@

.venv-oldest/.installed: setup.cfg pyproject.toml | .venv-oldest/bin/python
	@echo 'Installing tfdp[test], TensorFlow 2.18 and Keras 3.8 into .venv-oldest: a few minutes the first time.'
	@# Later versions of tensorflow-metadata need a later protobuf than TensorFlow 2.18 takes, and do not say so.
	@.venv-oldest/bin/python $(PIP_INSTALL) 'tensorflow==2.18.*' 'keras==3.8.*' 'tensorflow-metadata<1.18' --editable '.[test]'
	@touch $@

# Kept between runs: a pattern rule's targets would count as intermediate files.
.SECONDARY: .venv/.installed-examples .venv/.installed-test .venv/.installed-benchmarks

# $(call make-venv,FOLDER,NEWEST,TENSORFLOW): FOLDER with PYTHON, which is at most Python 3.NEWEST for TENSORFLOW.
define make-venv
@command -v "$(PYTHON)" >/dev/null || { \
	echo "No $(PYTHON) found. Install Python 3.10 to 3.$(2), or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $(2)))' || { \
	echo "TensorFlow $(3) runs on Python 3.10 to 3.$(2). $(PYTHON) is $$("$(PYTHON)" --version 2>&1)." \
		"Name another: make $(MAKECMDGOALS) PYTHON=python3.$(2)" >&2; exit 1; }
@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	echo "$(PYTHON) cannot make virtual environments: its modules venv and ensurepip are not installed." \
		"On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
@# The pip that comes with older Pythons can look for matching versions for minutes.
@"$(PYTHON)" -m venv --clear $(1) && $(1)/bin/python $(PIP_INSTALL) --upgrade pip || { rm -rf $(1); exit 1; }
endef

.venv/bin/python:
	$(call make-venv,.venv,13,2.21)

.venv-oldest/bin/python:
	$(call make-venv,.venv-oldest,12,2.18)
