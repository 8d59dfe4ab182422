# Everything sets itself up: `make demo` and `make test` work on a fresh machine with Python >= 3.11.
# pip receives PIP_ARGS. If your index has only the CUDA build of torch, give
# PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu".

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := $(VENV)/native.txt

export OMP_NUM_THREADS ?= 1

# Tests start hundreds of processes. Without bytecode files, each of them would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

# An agent would disturb these measurements.
bench bench-engine bench-overhead truth truth-bubble truth-flops accuracy: export TRAINCOPE_AGENT := off

# The release of torch that `make compat` tests.
TORCH ?= 2.6.0
COMPAT := .venv-torch-$(TORCH)
DOCS := .venv-docs

.PHONY: demo test test-native check-native fuzz programs test-engine test-timing test-gpu test-gpus test-release dist compat compat-matrix docs docs-serve docs-version notebooks check setup format bench bench-live bench-diff bench-viewer bench-engine bench-overhead bench-report bench-ingest producers test-kill sample-runs FORCE truth truth-bubble truth-clocks truth-flops truth-memory truth-plan truth-steps score-hangs score-healthy score-stragglers score-corruption score-preflight score-reports score-rl accuracy metrics-table worked-numbers schema public dashboards pictures validate-launch clean test-integrations test-launchers validate-exports validate-dashboards test-frameworks bench-scale score-hosts bench-tree

demo: setup
	@$(BIN)/traincope demo

# FAST=1 runs the files whose tests start no process and no browser, without slow tests.
test: setup $(if $(FAST),,programs)
	@$(BIN)/python -m pytest -q -n $(if $(FAST),2,4) --no-loadscope-reorder $(if $(FAST),--fast) tests

# SECONDS=600 runs for 600 seconds; SEED=7 runs one round with that seed.
fuzz: setup
	@SECONDS='$(SECONDS)' SEED='$(SEED)' $(BIN)/python -m tests.fuzz

# Run it on an idle machine.
test-timing: setup
	$(BIN)/python -m pytest -q -m timing tests

test-engine: setup
	@$(BIN)/python -m pytest -q -m 'sweep and not timing' tests
	@$(BIN)/python -m tests.distributed.sweep.sweep

# Environments of the packages are made once. ONLY=lightning runs the programs of that name, package or file.
test-frameworks: setup
	@$(BIN)/python -m evaluation.frameworks $(if $(ONLY),'$(ONLY)')

# BIN=/path/to/venv/bin uses that environment and installs nothing.
test-gpu: $(if $(filter command line,$(origin BIN)),,setup)
	@$(BIN)/python -m pytest tests/gpu

# Needs two or more GPUs. OUT=file names the file that can be attached to an issue.
test-gpus: $(if $(filter command line,$(origin BIN)),,setup)
	@$(BIN)/python -m tests.gpus $(if $(OUT),--out $(OUT))

# Packages come from the index, at the versions of constraints.txt. Each environment is deleted after its tests.
test-release: setup
	@PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m pytest -q -m release tests/release

# Writes the files of a release into dist/.
dist: setup
	@$(BIN)/python -m tests.release.distribution dist

# Each framework has an environment of its own. ONLY=lightning runs one file of these tests.
test-integrations: setup
	@$(BIN)/python -m tests.integrations.environments
	@$(BIN)/python -m pytest -q -m integrations tests/integrations$(if $(ONLY),/test_$(ONLY).py)

compat:
	@test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	@$(COMPAT)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)' 'isal>=1.7' 'msgspec>=0.19' 'numpy>=1.26' 'rich>=13.7' $(PIP_ARGS)
	@$(COMPAT)/bin/python -m tests.compat

# ROWS="2.13.0@3.12 2.12.0@3.11" tests only these. CUDA=1 also installs torch where only a CUDA build is offered.
compat-matrix: setup
	@$(BIN)/python -m tests.compat_matrix $(ROWS)

# Programs that some tests run. Without them, these tests skip with a reason; with CI=true they fail.
PROGRAMS := prometheus promtool prometheus-alertmanager chromium strace
PACKAGES := prometheus prometheus-alertmanager chromium strace

programs:
	@for program in $(PROGRAMS); do command -v $$program > /dev/null || missing=1; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing $(PACKAGES) from Debian (once)"; \
	  apt-get update -qq > /dev/null && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) > /dev/null || \
	  echo "the installation failed: the tests that need these programs skip"; \
	else echo "some tests will skip: they need Debian's $(PACKAGES)"; fi

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture

# The native recorder's kernels under sanitizers, and the Python hooks where the native recorder would record.
test-native: setup
	@$(BIN)/python -m pytest -q -m 'not timing' tests/native
	@$(BIN)/python -m tests.native.random_trainings $(if $(SEED),--seed $(SEED)) $(if $(PROGRAMS),--programs $(PROGRAMS))
	@TRAINCOPE_NATIVE=off $(BIN)/python -m pytest -q tests/faults tests/record

# Instructions of the native recorder's hooks, with budgets. Needs valgrind and a C++ compiler.
check-native: setup
	@test "$$CI" != true || command -v valgrind > /dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends valgrind; } > /dev/null
	@$(BIN)/python -m tests.native.instructions

setup: $(READY) $(NATIVE)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "traincope needs Python 3.11 or newer; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' $(PIP_ARGS)
	@touch $@

# Without a compiler, the Python hooks record.
$(NATIVE): $(READY) $(wildcard traincope/native/dispatch/* traincope/native/nccl_profiler/* traincope/native/trace_decoder/* traincope/native/*.py traincope/doctor/native*.py)
	@$(BIN)/traincope doctor --build-native > $@ || { cat $@; rm -f $@; test "$$CI" != true; }

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks.recorder

bench-live: setup
	$(BIN)/python -m benchmarks.live

bench-diff: setup
	$(BIN)/python -m benchmarks.diff --write

bench-viewer: setup
	$(BIN)/python -m benchmarks.viewer

bench-engine: setup
	$(BIN)/python -m benchmarks.engine

bench-overhead: setup
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.outside

# Ways to start a training. Their packages are installed into an environment of their own.
test-launchers: setup
	$(BIN)/python -m pytest -q -m launchers tests/launchers tests/live/shipping

test-kill: setup
	TRAINCOPE_KILLS=200 $(BIN)/python -m pytest -q -m 'not timing' tests/faults/test_kill_instants.py \
	  tests/engine/checkpoint/test_kill_instants.py tests/cli/launch/test_restarts.py

# RANKS='64 16384' chooses the sizes. The runs go to OUT, or to a temporary directory.
bench-scale: setup
	@$(BIN)/python -m benchmarks.scale.bench $(RANKS) $(if $(OUT),--out '$(OUT)')

bench-report: setup
	$(BIN)/python -m benchmarks.report

truth: setup
	$(BIN)/python -m evaluation.truth

bench-ingest: setup
	$(BIN)/python -m benchmarks.ingest

producers: setup
	$(BIN)/python -m tests.ingest.producers $(TRACES)

truth-bubble: setup
	$(BIN)/python -m evaluation.truth.pipelines.bubble

truth-clocks: setup
	$(BIN)/python -m evaluation.truth.machines.clocks

truth-flops: setup
	$(BIN)/python -m evaluation.truth.formulas.flops

# Needs a C compiler.
truth-memory: setup
	@$(BIN)/python -m evaluation.truth.memory.peaks

# On a busy machine, root can run it as `chrt -f 10 make truth-steps`.
truth-steps: setup
	@$(BIN)/python -m evaluation.truth.layouts.step_times

# ROWS=FILE also scores the rows of a file with the columns of evaluation/truth/formulas/llm_foundry.csv.
truth-plan: setup
	@failed=0; $(BIN)/python -m evaluation.truth.formulas.published || failed=1; \
	  $(BIN)/python -m evaluation.truth.formulas.predicted $(ROWS) || failed=1; \
	  $(BIN)/python -m evaluation.truth.formulas.peaks || failed=1; exit $$failed

# CASES=12 runs fewer cases; SEED=7 repeats those of a seed.
score-hangs: setup
	@$(BIN)/python -m evaluation.score.hangs $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) $(if $(ALL),--all) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(JOBS),--jobs $(JOBS))

score-healthy: setup
	@$(BIN)/python -m evaluation.score.replays $(if $(SEED),--seed $(SEED)) $(if $(DAYS),--days $(DAYS))
	@$(BIN)/python -m evaluation.score.healthy $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(if $(JOBS),--jobs $(JOBS))

score-stragglers: setup
	@$(BIN)/python -m evaluation.score.stragglers.score $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) \
	  $(if $(HEALTHY),--healthy $(HEALTHY)) $(if $(JOBS),--jobs $(JOBS))

score-preflight: setup
	@$(BIN)/python -m evaluation.score.preflight.score $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) \
	  $(if $(HEALTHY),--healthy $(HEALTHY))

score-hosts: setup
	@$(BIN)/python -m evaluation.score.hosts.score $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) \
	  $(if $(FAULTS),--faults $(FAULTS))

# ONLY=name runs one program and writes nothing. A score that was interrupted goes on at the same commit. RUNS=5 runs those
# of ONLY several times, BUSY=1 with another process on each core, and writes how often they were right. FIRST=1 runs those
# that never ran, and writes their first grades.
score-reports: setup
	@$(BIN)/python -m evaluation.score.reports.score $(ONLY) $(if $(JOBS),--jobs $(JOBS)) $(if $(RUNS),--runs $(RUNS)) $(if $(BUSY),--busy) $(if $(FIRST),--first)

bench-tree: setup
	@$(BIN)/python -m benchmarks.tree $(if $(HOSTS),--hosts $(HOSTS))

# ONLY=name runs one case and writes nothing.
score-rl: setup
	@$(BIN)/python -m evaluation.score.rl.score $(ONLY)

score-corruption: setup
	@$(BIN)/python -m evaluation.score.corruption $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES))
	@TRAINCOPE_AGENT=off $(BIN)/python -m benchmarks.corruption

accuracy: setup
	$(BIN)/python -m evaluation.truth.accuracy

# Each tool is installed into an environment of its own, Slurm from Debian's packages.
validate-launch: setup
	@$(BIN)/python -m tests.cli.launch_files.validate

# The Parquet export by DuckDB, dashboards by the types that Grafana publishes.
validate-exports: setup
	@$(BIN)/python -m tests.exporters.validate

validate-dashboards: setup
	@$(BIN)/python -m tests.dashboards.validate

worked-numbers: setup
	@$(BIN)/python -m evaluation.truth.formulas.worked

metrics-table: setup
	@$(BIN)/python -c "from traincope_exporters.prometheus.documentation import write; write('docs/reference/METRICS.md')"
	@$(BIN)/python -c "from traincope.tables.documentation import write; write('docs/reference/sql-views.md')"

# The documentation has an environment of its own. A broken link or anchor, or another output of a notebook, is an error.
docs: $(DOCS)/.ready
	@PATH="$(abspath $(DOCS)/bin):$$PATH" $(DOCS)/bin/python -m tests.notebooks
	@$(DOCS)/bin/mkdocs build --strict
	@echo "build/site/index.html"

docs-serve: $(DOCS)/.ready
	@$(DOCS)/bin/mkdocs serve

# Adds the site of VERSION to the branch gh-pages, as the latest one.
docs-version: docs
	@test -n '$(VERSION)' || { echo "give VERSION=X.Y"; exit 2; }
	@$(DOCS)/bin/mike deploy --update-aliases '$(VERSION)' latest
	@$(DOCS)/bin/mike set-default latest

notebooks: $(DOCS)/.ready
	@PATH="$(abspath $(DOCS)/bin):$$PATH" $(DOCS)/bin/python -m tests.notebooks --write

$(DOCS)/.ready: pyproject.toml constraints.txt
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]' $(PIP_ARGS)
	@touch $@

schema: setup
	@$(BIN)/python -c "import json; from traincope.report.schema.published import json_schema as s; print(json.dumps(s(), indent=1))" > docs/reference/report.schema.json

# The committed list of public names: tests/architecture/public.txt.
public: setup
	@$(BIN)/python -m tests.architecture.public > tests/architecture/public.txt

dashboards: setup
	$(BIN)/traincope dashboards build

pictures: setup
	@$(BIN)/python -m tests.browser.pictures

sample-runs: setup
	$(MAKE) sample_runs/demo RANKS=4 STEPS=30
	$(MAKE) sample_runs/demo-3d RANKS=8 STEPS=6
	$(MAKE) sample_runs/restart
	$(BIN)/python -m evaluation.postmortems.build sample_runs
	$(BIN)/python -m evaluation.gallery.record sample_runs/faults

sample_runs/demo sample_runs/demo-3d: FORCE
	rm -rf $@
	TRAINCOPE_BUDGET=none $(BIN)/traincope demo --ranks $(RANKS) --steps $(STEPS) --out $@
	$(BIN)/traincope report $@ --format json -o $@/expected.json
	echo 'make sample-runs (traincope demo --ranks $(RANKS) --steps $(STEPS) --out $@)' > $@/MADE_BY

# A bad step with a rollback in both attempts, and a killed rank with lost steps between them.
sample_runs/restart: FORCE
	rm -rf $@ traincope_runs/restart traincope_runs/restart-checkpoints
	TRAINCOPE_BUDGET=none TRAINCOPE_AGENT=off $(BIN)/traincope train examples/ddp.toml $(addprefix --set ,$(RESTART)) \
	  --fault nan_gradient@rank=1,step=7+sigkill@rank=1,step=12 --max-restarts 1 --out traincope_runs/restart
	$(BIN)/python -m evaluation.gallery.committed traincope_runs/restart $@
	$(BIN)/traincope report $@ --format json -o $@/expected.json
	echo 'make sample-runs (traincope train, as in the Makefile)' > $@/MADE_BY

RESTART = parallel.dp=2 model.layers=2 model.hidden=64 model.heads=2 model.kv_heads=2 model.ffn=128 model.sequence=64 \
  train.steps=20 train.batch=8 checkpoint.every=3 checkpoint.directory=traincope_runs/restart-checkpoints \
  stability.not_finite=rollback

FORCE:

clean:
	rm -rf $(VENV) .venv-* traincope_runs
	rm -rf $(VENV) $(DOCS) build dist .cache .venv-torch-* .venv-launch-* traincope_runs
