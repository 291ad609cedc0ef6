# Every target sets itself up from nothing: `make demo` and `make test` on a fresh machine are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# PyPI's own torch brings gigabytes of CUDA; the CPU build (2.13.0+cpu) sorts above it and lies in PyTorch's index.
# Where pip has been given sources of its own, those are used as they are.
ifeq ($(PIP_FIND_LINKS)$(PIP_INDEX_URL)$(PIP_EXTRA_INDEX_URL),)
TORCH_INDEX := --extra-index-url https://download.pytorch.org/whl/cpu
endif

# Bytecode is kept, whatever the environment says: collecting the tests takes 5 s with it, 12 without.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo quick test lint format bench soak clean

install: $(VENV)/.installed

# The stamp makes a second `make install` instant; it is older than what it depends on exactly when something changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "wiiiiide needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Set PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "making $(VENV) failed. On Debian: apt-get install python3-venv"; exit 2; }
	@$(PIP) install $(TORCH_INDEX) --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install
	@$(BIN)/python examples/language-model/demo.py

# What starts no process, in a minute; then everything, on all cores; `pytest tests/x` is one after the other.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadgroup --no-loadscope-reorder

quick: install
	@$(PYTEST) -m quick

test: install
	@$(PYTEST)

lint: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: install
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Results go to bench/results/; on a quiet machine this takes about an hour and a half. BENCH=--no-save only shows them.
# The last five make hosts: they need root, iproute2, iperf3, and cluster.py systemd-container and dbus.
# One that cannot run says why, and the others go on.
bench: install $(VENV)/.bench
	@without=; \
	run() { $(BIN)/python bench/"$$@" $(BENCH) || \
	  { test $$? = 130 && exit 130; without="$$without $$1"; }; }; \
	run one_host.py; \
	run train_step.py; \
	run train_step.py --optimizer sgd; \
	run train_step.py --ranks 4; \
	run ladder.py; \
	run shared_dataset.py; \
	run checkpoint.py; \
	run train_memory.py; \
	run async_loss.py; \
	run slow_links.py --losses; \
	run idle_groups.py; \
	run daemon.py; \
	run metrics_cost.py; \
	run codec.py --save; \
	run sockets.py --save; \
	run two_hosts.py --save; \
	run slow_links.py; \
	run plan_accuracy.py; \
	run cluster.py; \
	test -z "$$without" || { echo "without a result, for the reason given above:$$without"; exit 1; }

# Open MPI is one of the contenders where it is there: apt-get install openmpi-bin libopenmpi-dev
$(VENV)/.bench: $(VENV)/.installed
	@$(PIP) install --constraint constraints.txt --editable '.[bench]' 2>/dev/null || \
	  echo "mpi4py could not be built (apt-get install libopenmpi-dev gcc): Open MPI is left out"
	@touch $@

# What takes minutes or gigabytes, and every property test with many more examples.
soak: install
	@$(PYTEST) -m 'soak or property' --timeout 1800

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
