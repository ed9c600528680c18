# `make demo` and `make test` do everything on a fresh clone; the second time they only run.
#   make demo ARGS="seed=1 run=demo-1"     overrides of the configuration
#   make demo DEVICE=gpu                   the packages and presets for an NVIDIA GPU
#   make demo PYTHON=/path/to/python3.11   an interpreter that is not on PATH

PYTHON ?= python3
DEVICE ?= cpu
ARGS ?=

BIN := .venv/bin
HARDWARE := $(if $(filter gpu,$(DEVICE)),hardware=gpu)
PYTORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# A training is a dozen processes, and each would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup model demo test chaos lint format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: model ## Train SmolLM2-135M on arithmetic on this machine, ending with a report (about 12 minutes)
	@$(BIN)/rlvr train arithmetic $(HARDWARE) $(ARGS)

test: model lint ## Lint, the fast tests, then the tests of the real engines
	@$(BIN)/pytest -q -n 2 --ignore=tests/stack
	@$(BIN)/pytest -q --timeout=600 tests/stack

chaos: model ## Kill every kind of process in every stage and retry: the whole kill matrix (35 minutes)
	@$(BIN)/python -m tests.stack.chaos.matrix

setup: ## Check this machine and install the locked packages into .venv
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) is needed and not there; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) requirements/setup.py $(DEVICE)

model: setup ## Convert the pretrained model into the cache ($RLVR_CACHE or ~/.cache/rlvr)
	@$(BIN)/python -m rlcore.pretrained

lint: setup ## ruff, mypy, and the rules of who may import whom
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted (make format):"; $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@report="$$($(BIN)/lint-imports --no-logo 2>&1)" || { echo "$$report"; exit 1; }

format: setup ## Let ruff format and mend what it can
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

# The configured indexes first; where they have no CPU build of torch, PyTorch's own.
# uv reads no pip configuration: the place where pip finds wheels is handed over.
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --no-annotate --custom-compile-command "make lock" \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28 --extra dev
COMPILE_CPU := $(COMPILE) --extra cpu --override requirements/cpu-overrides.txt --output-file requirements/cpu.txt

lock: setup ## Compile requirements/cpu.txt and gpu.txt from pyproject.toml
	@export UV_FIND_LINKS="$$($(BIN)/pip config get global.find-links 2> /dev/null | tr ' ' ',')"; \
		$(COMPILE_CPU) > /dev/null 2>&1 || \
		$(COMPILE_CPU) --index $(PYTORCH_CPU_INDEX) --index-strategy unsafe-best-match > /dev/null
	@$(COMPILE) --extra gpu --output-file requirements/gpu.txt > /dev/null

clean: ## Remove .venv and the tools' caches; runs/ and the model stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache *.egg-info
