# Everything a checkout needs is Python (3.11 or newer) and make. `make help` lists what there is.

# The first Python that is new enough and can make an environment; PYTHON=… chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# Touched last: an environment whose making was interrupted has none, and is made anew.
STAMP := $(VENV)/made

# Tests wait for other processes more than they compute: three at a time pay even on one core. Some take much longer
# than others: who is done takes over from who is not.
PYTEST_FLAGS ?= -n 3 --dist worksteal

.PHONY: help demo test lint format docs wheel clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv on the PATH; say make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making the environment $(VENV) with $(PYTHON): this takes a minute"
	@test -e $(STAMP) || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(STAMP)
	@# The development group by hand: not every pip knows groups.
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > $(VENV)/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --requirement $(VENV)/dev.txt
	@touch $(STAMP)

demo: $(STAMP) ## Run the flights example in ./demo, on an embedded log.
	@test -d demo || $(BIN)/agentic new demo --template flights
	@AGENTIC="$(BIN)/agentic" sh demo/demo.sh

test: $(STAMP) ## Run all tests.
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(STAMP) ## Check style, types and the import contract.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## Write the pages that are made from the code.
	$(BIN)/python docs/generate.py

wheel: $(STAMP) ## Build the wheel into dist/.
	$(BIN)/python -m build --wheel --outdir dist .

clean: ## Remove what can be made again, the demo and its log included.
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
