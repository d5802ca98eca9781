# Every target sets up its own environment first; nothing is installed outside .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs
ARGS ?=
TEST_ARGS ?=
FUZZ_DEVICES ?= cpu emu

.PHONY: help setup mnist smoke test fuzz-long lint docs format clean

help:
	@echo "make mnist   train a perceptron on MNIST  (ARGS='--epochs 3 --device cuda')"
	@echo "make smoke   some tests of every room, under a minute"
	@echo "make test    run the tests                (TEST_ARGS='-k matmul')"
	@echo "make fuzz-long   random programs by the thousand, then they and the tests without fast paths   (FUZZ_DEVICES='cpu emu cuda')"
	@echo "make lint    ruff and mypy"
	@echo "make docs    the site of all pages and every public name, into build/docs/html"
	@echo "make format  let ruff rewrite the files"
	@echo "make clean   remove the environment and everything generated"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11; try: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,dev,plot]'
	@touch $@

mnist: $(STAMP)
	$(BIN)/python examples/mlp.py --synthetic $(ARGS)

smoke: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m smoke $$(grep -rl 'mark\.smoke(' tests --include='test_*.py') $(TEST_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile $(TEST_ARGS)

fuzz-long: $(STAMP)
	for device in $(FUZZ_DEVICES); do $(BIN)/python -m tests.fuzz long --device $$device || exit 1; done
	TGC_SLOW=1 $(BIN)/python -m pytest -n auto --dist loadfile $(TEST_ARGS)
	for device in $(FUZZ_DEVICES); do TGC_SLOW=1 $(BIN)/python -m tests.fuzz long --device $$device || exit 1; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(DOCS_STAMP)
	$(BIN)/python docs/site/build.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
