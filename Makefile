# Every target sets up what it needs; `make setup` is quick when nothing has changed.
# Python: the first of python3.11, python3.12, python3 that is 3.11 or 3.12; PYTHON=... overrides.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done

.PHONY: help setup setup-triton gpu-packs demo test test-long unit lint docs format stubs lock bench runtime-wheel compose-test release-check clean

help:
	@echo "make setup          fill $(VENV) from locks/dev.lock"
	@echo "make setup-triton   Triton's compiler (1 GB) from locks/triton.lock, for its tests in make test-long"
	@echo "make demo           tune a real model at two shares of this CPU and show the gain"
	@echo "make test           all tests but the long ones        make unit   the quick ones"
	@echo "make test-long      the long ones"
	@echo "make lint           ruff, mypy and the width of the pages"
	@echo "make docs           the site of docs/ in build/docs; a warning is an error"
	@echo "make format         ruff's formatter and its repairs"
	@echo "make stubs          Python code from protos/"
	@echo "make lock           locks/ from pyproject.toml"
	@echo "make bench          benchmarks/"
	@echo "make runtime-wheel  the wheel of fractune-runtime, for serving, into dist"
	@echo "make gpu-packs      what scripts/gpu_day carries to a lent GPU, into build/gpu-day"
	@echo "make compose-test   the containers, for real (podman, root)"
	@echo "make release-check  version, changelog and built files agree"

setup: $(STAMP)

$(STAMP): locks/dev.lock pyproject.toml scripts/setup
	scripts/setup $(VENV)
	@touch $@

setup-triton: setup
	$(BIN)/python -m pip install -q --no-deps --require-hashes -r locks/triton.lock

demo: setup
	$(BIN)/python examples/demo.py

# Most tests share the cores, four more files at a time than there are cores: many tests wait for processes. Those that
# measure for real come after them: two files at a time, one of which measures while the other waits for its turn, or for
# something else. tests/support/order.py says in which order the files run.
SIDE_BY_SIDE := -n $(shell expr $$(nproc) + 4) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
MEASURING := -n 2 --dist loadfile --no-loadscope-reorder
MEASURE := tests/integration tests/unit/workers/measuring

# Both halves run, so that a failure of the first does not hide those of the second.
test: setup
	@bad=0; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not alone and not long" $(PYTEST_ARGS) || bad=1; \
	$(BIN)/python -m pytest $(MEASURING) -m "alone and not long" $(MEASURE) $(PYTEST_ARGS) || bad=1; \
	exit $$bad

# Rare things that take long by nature; what they promise has a quick test too, where it can have one.
test-long: setup
	@bad=0; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "long and not alone" $(PYTEST_ARGS) || bad=1; \
	$(BIN)/python -m pytest $(MEASURING) -m "long and alone" $(MEASURE) $(PYTEST_ARGS) || bad=1; \
	exit $$bad

unit: setup
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) tests/unit $(PYTEST_ARGS)

lint: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/lint

docs: setup
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

stubs: setup
	PYTHON=$(BIN)/python scripts/stubs

lock:
	scripts/lock

bench: setup
	$(BIN)/python -m benchmarks

runtime-wheel: setup
	$(BIN)/python scripts/runtime_wheel

gpu-packs: setup
	scripts/gpu_day pack --carried build/gpu-day

compose-test:
	scripts/compose_test

release-check: setup
	PYTHON=$(BIN)/python scripts/release_check

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
