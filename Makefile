PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: help demo test lint clean

help:
	@echo "make demo   set up, then decompose SmolLM2-135M-Instruct on example sentences"
	@echo "make test   set up, then run every check"
	@echo "make lint   set up, then run the static checks only"
	@echo "make clean  remove the environment, the tools' caches and all results"
	@echo "Setting up makes $(VENV) with $(PYTHON); choose another with PYTHON=..."

# Where Python has no ensurepip (Debian without python3-venv) the machine's own pip fills in.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV), which takes a few minutes"
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/lens-diversity run --model smollm2 --task sst2 --data examples/sentiment.tsv --out results/demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) results .pytest_cache .mypy_cache .ruff_cache .hypothesis
