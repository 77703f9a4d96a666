# Every target creates the virtual environment it needs; nothing has to be set up first.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-demo-dev
RIVALS := $(VENV)/.installed-bench

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint bench build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## fine-tune, prune and compare a small real model, offline, minutes on two cores
	HF_HUB_OFFLINE=1 $(BIN)/thresher demo

test: $(RIVALS) ## run every test that needs no GPU
	$(BIN)/python -m pytest -q -m "not gpu" -n 3 --dist worksteal

lint: $(STAMP) ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(RIVALS) ## the demo's model against Hugging Face, onnxruntime and OpenVINO on this machine
	test -d runs/demo || $(MAKE) demo
	HF_HUB_OFFLINE=1 $(BIN)/thresher bench runs/demo

build: $(STAMP) ## source distribution and wheel in dist/
	$(BIN)/python -m build

clean: ## remove the environment, caches and build outputs; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "thresher needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e ".[demo,dev]"
	@touch $@

$(RIVALS): $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e ".[bench]"
	@touch $@
