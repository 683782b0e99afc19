PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRA := $(shell nvidia-smi >/dev/null 2>&1 && echo ,cuda13-ctk)

# PyTorch without CUDA's libraries is on an index of its own
TORCH_INDEX := $(if $(EXTRA),,--extra-index-url https://download.pytorch.org/whl/cpu)

.PHONY: infer test test-gpu test-peers lint fuzz sanitize lock sbom clean

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".$(if $(EXTRA),[$(EXTRA:,%=%)])"
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev$(EXTRA)]"
	touch $@

$(VENV)/.peers: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev,peers$(EXTRA)]" $(TORCH_INDEX)
	touch $@

infer: $(VENV)/.run  ## classify the 10,000 digits that ship
	$(BIN)/lenetgpu infer --batch 10000

test: $(VENV)/.dev  ## every test that this machine can run
	$(BIN)/python -m pytest $(if $(EXTRA),,-n auto --maxprocesses 8 --dist worksteal)

test-gpu: $(VENV)/.dev  ## every GPU test; writes tests/gpu-receipt.json
	$(BIN)/python -m pytest -m gpu -n auto --maxprocesses 6 --dist worksteal

test-peers: $(VENV)/.peers  ## the tests that need PyTorch
	$(BIN)/python -m pytest -m peers

fuzz: $(VENV)/.dev  ## damaged files of every format, for SECONDS
	$(BIN)/python scripts/fuzz.py --seconds $(or $(SECONDS),300)

sanitize: $(VENV)/.dev  ## every GPU variant under compute-sanitizer, on a GPU with the CUDA toolkit
	$(BIN)/python scripts/sanitize.py --jobs $(or $(JOBS),4)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist
