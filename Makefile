# Each target does all its own set-up: a .venv with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-models check docs bench clean sanitize arm attack floors onnxruntimes

demo: $(VENV)/demo.done  ## binarize, train, harden and compare on the embedded data
	$(BIN)/proxbit demo

test: $(VENV)/test.done  ## all tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

test-models: $(VENV)/models.done  ## small models of every family, the whole way (minutes)
	$(BIN)/python -m pytest -m models --numprocesses auto --maxprocesses 8 --dist worksteal tests/test_model_sweep.py

check: $(VENV)/check.done  ## lint, format, types; layers, glossary and pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.13
	cd benchmarks && ../$(BIN)/mypy --config-file ../pyproject.toml .
	$(BIN)/python -m pytest -m 'not slow' tests/test_architecture.py tests/test_glossary.py tests/test_site.py
	$(BIN)/python tools/write_docs.py --check

docs: $(VENV)/docs.done  ## the documentation site, into site/: strict, and without the internet
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python tools/site/check.py site

sanitize: $(VENV)/test.done  ## the kernels' tests under AddressSanitizer and UBSan
	PYTHON=$(BIN)/python tools/sanitize.sh

arm:  ## the kernels for 64-bit ARM, cross-compiled, under emulation
	tools/arm.sh

onnxruntimes: $(VENV)/test.done  ## the stored networks in the oldest and the newest onnxruntime
	PYTHON=$(BIN)/python tools/onnxruntimes.sh

attack: $(VENV)/test.done  ## fuzzes and storms, counted (minutes; ATTACK="--seconds 600" for more)
	$(BIN)/python tools/attack/run.py $(ATTACK)

# Tests that need no extra, on the package as it installs; other packages' deprecations are their own.
FLOORS := $(addprefix tests/test_,maps_and_prox.py layers.py engine_pack.py engine_file.py \
	train_resume.py train_checkpoint.py train_mistakes.py cli_errors.py packed_memory.py)

floors: constraints.txt  ## the lowest versions that pyproject.toml allows, in a .venv-floors
	rm -rf $(VENV)-floors
	$(PYTHON) -m venv $(VENV)-floors
	$(VENV)-floors/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 \
		$$($(VENV)-floors/bin/python tools/floors.py) pytest pytest-xdist hypothesis
	$(VENV)-floors/bin/pip install --quiet --disable-pip-version-check --no-deps .
	$(VENV)-floors/bin/proxbit train --epochs 1 --max-steps-per-epoch 3 --out $(VENV)-floors/run
	$(VENV)-floors/bin/proxbit pack $(VENV)-floors/run --force
	$(VENV)-floors/bin/python -m pytest --numprocesses 2 -W ignore::DeprecationWarning $(FLOORS)

bench: $(VENV)/bench.done  ## all benchmarks, into docs/performance.md (half an hour)
	$(BIN)/python benchmarks/training_step.py --markdown docs/performance.md
	$(BIN)/python benchmarks/epoch.py --markdown docs/performance.md
	$(BIN)/python benchmarks/kernels.py --markdown docs/performance.md
	$(BIN)/python benchmarks/network.py --onnx --markdown docs/performance.md

$(VENV)/base.done: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0 numpy
	touch $@

# torchvision names its own torch; without dependencies it takes the one that is there.
$(VENV)/vision.done: $(VENV)/base.done
	$(PIP) --no-deps torchvision
	$(PIP) timm pillow
	touch $@

KERNELS := pyproject.toml CMakeLists.txt $(wildcard csrc/*)

$(VENV)/demo.done: $(VENV)/base.done $(KERNELS)
	$(PIP) --editable .
	touch $@

$(VENV)/test.done: $(VENV)/vision.done $(KERNELS)
	$(PIP) --editable '.[test]'
	touch $@

$(VENV)/models.done: $(VENV)/test.done
	$(PIP) --editable '.[test-models]'
	touch $@

$(VENV)/check.done: $(VENV)/test.done
	$(PIP) --editable '.[check]'
	touch $@

$(VENV)/docs.done: $(VENV)/demo.done
	$(PIP) --editable '.[docs]'
	touch $@

$(VENV)/bench.done: $(VENV)/vision.done $(KERNELS)
	$(PIP) --editable '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-floors build site src/proxbit/kernels/libproxbit.*
	rm -rf .cmake .ninja_* .skbuild-info.json CMakeCache.txt CMakeFiles CMakeInit.txt backends.inc build.ninja cmake_install.cmake
