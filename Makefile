# Everything runs from this folder alone: the environment is .venv, the demo's state .superfluid.

PYTHON ?= python3
VENV ?= .venv
STATE ?= .superfluid
# Extra words for pip, such as -c constraints.txt for the versions that CI tests with.
PIP_FLAGS ?=
# How long `make fuzz` runs, and how many runs `make sim` does.
SECONDS ?= 60
RUNS ?= 4000
# A seed: `make fuzz` and `make odd-requests` draw one when it is empty, `make sim` begins with 1.
SEED ?=
# make bench-engine: PEERS=1 measures the runtimes of bench-peers in the same rounds; SUSTAIN is in
# minutes, 0 skips it. JOBS= bounds the compiler in bench-peers.
PEERS ?=
ROUNDS ?= $(if $(PEERS),15,5)
SUSTAIN ?= $(if $(PEERS),10,0)
JOBS ?=
# make bench-fleet: SIM=1 simulates large fleets instead.
SIM ?=
# make chaos: minutes of strikes, and how often the fleet is ended in some way afterwards.
MINUTES ?= 5
ENDS ?= 100
# make bench-gpu: where its results go, and cpu to see on a machine without a GPU that it runs.
GPU_JSON ?= build/bench/gpu.json
DEVICE ?= cuda
# Extra words for pytest, such as -k NAME.
TEST_FLAGS ?=

BIN := $(VENV)/bin
SFCTL := $(BIN)/sfctl --state $(STATE)
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS)

.PHONY: help venv venv-dev demo stop test lint unit sim mutants wheel-check bench-engine bench-fleet \
  bench-peers bench-pipeline bench-gpu bench-strangers bench-bus bench-uploads chaos faults-long stages-long \
  fuzz odd-requests constraints report-toolcalls report-wer clean

help:
	@echo "make demo          install, get a model, start one head and two nodes, ask it something"
	@echo "make stop          end what the demo started"
	@echo "make test          linters, types, import contracts and all tests"
	@echo "make sim           RUNS= simulated runs from SEED= on    make mutants  the bugs it must catch"
	@echo "make venv          only install into $(VENV)"
	@echo "make wheel-check   build the wheel and try it in an environment of its own"
	@echo "make fuzz          wrong input of all kinds for SECONDS=60, drawn from SEED="
	@echo "make odd-requests  10,000 odd requests, drawn from SEED=, against a live worker and a head"
	@echo "make constraints   JSON Schemas of the public test suite against constrained output"
	@echo "make report-wer    word error rates of Whisper here and of an independent float32 reference"
	@echo "make report-wer SPEED=1  only how much of its time a talk takes here"
	@echo "make report-toolcalls  recorded tool calls of nine model families, whole and in pieces"
	@echo "make bench-engine  tokens/s of the engine    make bench-fleet  the fleet against the engine"
	@echo "make bench-fleet HEAD=1  the head alone, against nodes without models; QUICK=1: a tenth of it"
	@echo "make bench-fleet SIM=1   placement in simulated fleets of 64 to 1,000 nodes, some minutes"
	@echo "make bench-pipeline  a model over two nodes against the whole one: tokens/s, hops, bytes"
	@echo "make bench-peers   build the runtimes for make bench-engine PEERS=1 to compare with"
	@echo "make bench-gpu     check and measure a GPU in 8 minutes; results in GPU_JSON=$(GPU_JSON)"
	@echo "make bench-bus     links against bare pyzmq  make bench-strangers  what attackers cost"
	@echo "make bench-uploads files and long prompts beside streams: gaps, and how late heartbeats are"
	@echo "make chaos         kill, stop, cut off real processes for MINUTES=5; end a fleet ENDS=100 times"
	@echo "make faults-long   stopped agents with the times as they are, two minutes"
	@echo "make stages-long   stages of Gemma with float activations against the whole model, three minutes"
	@echo "make clean         remove $(VENV), caches and builds (not the models)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: superfluid needs Python 3.11 or newer; $(PYTHON) is" \
	    "$$($(PYTHON) -V 2>&1 || echo not there). Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "making the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(STAMP): setup.cfg pyproject.toml | $(BIN)/python
	@echo "installing superfluid and what it needs into $(VENV): some hundred MB, a minute or more"
	@$(PIP) -e '.[import]'
	@touch $@

$(STAMP_DEV): setup.cfg pyproject.toml | $(BIN)/python
	@echo "installing superfluid, what it needs and what its tests need into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(STAMP)

venv: $(STAMP)

venv-dev: $(STAMP_DEV)

demo: $(STAMP)
	@$(SFCTL) demo

stop:
	@if [ -x $(BIN)/sfctl ]; then $(SFCTL) down; else echo "nothing was ever installed here"; fi

lint: $(STAMP_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pip --disable-pip-version-check check

unit: $(STAMP_DEV)
	$(BIN)/pytest -q -n 2 --dist worksteal $(TEST_FLAGS)

test: lint unit

sim: $(STAMP_DEV)
	@$(BIN)/python -m tests.sim --runs '$(or $(RUNS),4000)' --seed '$(or $(SEED),1)'

mutants: $(STAMP_DEV)
	@$(BIN)/python -m tests.sim --mutants

wheel-check: $(STAMP_DEV)
	PYTHON=$(BIN)/python PIP_FLAGS='$(PIP_FLAGS)' .ci/wheel-check

bench-engine: $(STAMP_DEV)
	@$(BIN)/python -m bench.engine --rounds '$(ROUNDS)' --sustain '$(SUSTAIN)' $(if $(PEERS),--peers)

bench-peers: $(STAMP_DEV)
	@$(BIN)/python -m bench.build_peers $(if $(JOBS),--jobs '$(JOBS)')

fuzz: $(STAMP_DEV)
	@$(BIN)/python -m tests.fuzz --seconds '$(SECONDS)' --seed '$(SEED)'

odd-requests: $(STAMP_DEV)
	@$(BIN)/python -m tests.odd --seed '$(SEED)'

constraints: $(STAMP_DEV)
	@$(BIN)/python -m tests.constraints

report-wer: $(STAMP_DEV)
	@$(BIN)/python -m bench.word_errors $(if $(SPEED),--speed)

report-toolcalls: $(STAMP_DEV)
	@$(BIN)/python -m tests.toolcalls

bench-gpu: $(STAMP_DEV)
	@mkdir -p $(dir $(GPU_JSON))
	@$(BIN)/python -m bench.gpu --device '$(DEVICE)' --json '$(GPU_JSON)'

bench-fleet: $(STAMP_DEV)
	$(BIN)/python -m bench.fleet $(if $(HEAD),--head) $(if $(QUICK),--quick) $(if $(SIM),--sim)

bench-strangers: $(STAMP_DEV)
	$(BIN)/python -m bench.strangers

bench-bus: $(STAMP_DEV)
	$(BIN)/python -m bench.bus

bench-pipeline: $(STAMP_DEV)
	@$(BIN)/python -m bench.pipeline

bench-uploads: $(STAMP_DEV)
	@$(BIN)/python -m bench.uploads

chaos: $(STAMP_DEV)
	@$(BIN)/python -m bench.chaos --minutes '$(MINUTES)' --rounds '$(ENDS)'

# Stopped agents with the times as they are; the tests scale them. Some two minutes.
faults-long: $(STAMP_DEV)
	SUPERFLUID_TEST_SILENCE_S=30 $(BIN)/pytest -q tests/e2e/test_faults_stops.py

stages-long: $(STAMP_DEV)
	SUPERFLUID_TEST_LONG=1 $(BIN)/pytest -q tests/unit/models/test_stage_logits.py tests/e2e/test_pipelines_models.py

clean: stop
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
