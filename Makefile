PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: help demo test lint clean

help:
	@echo "make demo   set up, then decompose SmolLM2-135M-Instruct on example sentences"
	@echo "make test   set up, then run every check"
	@echo "make lint   set up, then run the static checks only"
	@echo "make clean  remove the environment and all results"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
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
	rm -rf $(VENV) results
