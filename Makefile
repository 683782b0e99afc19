PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRA := $(shell nvidia-smi >/dev/null 2>&1 && echo ,cuda13-ctk)

# PyTorch without CUDA's libraries is on an index of its own
TORCH_INDEX := $(if $(EXTRA),,--extra-index-url https://download.pytorch.org/whl/cpu)

# CI installs what .ci/lock.txt has, by its hashes; a GPU's libraries are not in it
LOCKED := $(if $(EXTRA),,$(filter true 1,$(CI)))

.PHONY: infer test test-slow test-gpu test-lowest test-peers lint fuzz sanitize lock sbom clean

ifneq ($(LOCKED),)
$(VENV)/.run: pyproject.toml .ci/lock.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement .ci/lock.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-index --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	touch $@
else
$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".$(if $(EXTRA),[$(EXTRA:,%=%)])"
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev$(EXTRA)]"
	touch $@

endif

$(VENV)/.peers: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev,peers$(EXTRA)]" $(TORCH_INDEX)
	touch $@

$(VENV)-lowest/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet uv
	$(VENV)-lowest/bin/uv pip install --quiet --python $(VENV)-lowest/bin/python \
		--resolution lowest-direct --editable ".[dev,isal]"
	touch $@

infer: $(VENV)/.run  ## classify the 10,000 digits that ship
	$(BIN)/lenetgpu infer --batch 10000

test: $(VENV)/.dev  ## the tests for every change, in minutes
	$(BIN)/python -m pytest -m "not slow" $(if $(EXTRA),,-n auto --maxprocesses 8 --dist worksteal)

test-slow: $(VENV)/.dev  ## the long ones: all architectures, kills, fuzz, packaging, emulated tensor cores
	$(BIN)/python -m pytest -m slow -n auto --maxprocesses 8 --dist worksteal

test-gpu: $(VENV)/.dev  ## every GPU test, or with REST=1 those not passed yet; writes tests/gpu-receipt.json
	$(BIN)/python -m pytest -m gpu -n auto --maxprocesses 6 --dist load --maxschedchunk 1 $(if $(REST),--rest)

test-lowest: $(VENV)-lowest/.dev  ## every test, with the lowest versions that pyproject.toml allows
	$(VENV)-lowest/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal

test-peers: $(VENV)/.peers  ## the tests that need PyTorch
	$(BIN)/python -m pytest -m peers

fuzz: $(VENV)/.dev  ## damaged files of every format, for SECONDS
	$(BIN)/python scripts/fuzz.py --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED))

sanitize: $(VENV)/.dev  ## every GPU variant under compute-sanitizer, on a GPU with the CUDA toolkit
	$(BIN)/python scripts/sanitize.py --jobs $(or $(JOBS),4)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lock:  ## .ci/lock.txt anew, of the newest versions
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet uv
	$(VENV)-lock/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.10 \
		--generate-hashes --no-header --quiet --upgrade --output-file .ci/lock.txt

sbom: $(VENV)/.dev  ## the wheel, and the bill of materials of an environment that has it
	$(BIN)/python -m build --wheel --no-isolation --outdir dist >/dev/null
	$(PYTHON) -m venv $(VENV)-sbom
	$(VENV)-sbom/bin/python -m pip install --quiet dist/*.whl cyclonedx-bom
	$(VENV)-sbom/bin/cyclonedx-py environment --output-file dist/lenetgpu.cdx.json

clean:
	rm -rf $(VENV) build dist
