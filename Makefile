# Every target sets up .venv by itself: Python 3.11 or newer is all that has to be there.
#
#   make study      train the default study, build the site      (settings.ini says which and where)
#   make test       all tests that need neither minutes, root nor daemons
#   make lab        the guides in JupyterLab  (LAB_ARGS="--no-browser --port 9999")      make docs  the site, with the notebooks as pages
#   make bench      what a step costs beside a bare loop and other frameworks   (half a gigabyte more; GROWTH_RUNS=10,100,1000 is shorter)
#   make test-slow  the long tests (hours; SLOW_WORKERS=2: two files at a time)     make gpu-study  the GPU study, on a machine that has one
#   make lock       what the images install, with hashes: docker/requirements.*.lock   (UPGRADE=1: newer versions)
#   make ancestors  a command for each thing that the three ancestor systems did, typed  (SLOW=1: also those that take minutes)
#   make nemo-env   NeMo 2.7.3 in .venv-nemo, apart from ours, for `llmbench backend nemo`      (2.5 GB more)
#
# FORCE=1 repeats runs that are finished. On a machine without a GPU, PIP_EXTRA_INDEX_URL may name PyTorch's
# index of CPU builds, which saves several gigabytes of download.

PYTHON ?= python3
SHELL := /bin/bash
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
NEMO_PIP := .venv-nemo/bin/pip install --quiet --disable-pip-version-check
TORCH := $(shell sed -n 's/^train = \["\(torch==[^"]*\)".*/\1/p' pyproject.toml)
NEMO := nemo_toolkit==2.7.3
SAY := @printf '\033[1m%s\033[0m\n'
GPU_STUDIES ?= $(patsubst %,params/studies/h200-%.yaml,gpt-124m llama-1b llama-8b-layers llama-8b-precision llama-8b-lengths plan explain)
TEST_WORKERS ?= 3
GPU_PEERS ?= params/h200/llama-8b-layers.yaml
FORCE_FLAG := $(if $(FORCE),--force)
# Where the lock takes torch's CPU build from; a folder that has its wheel: TORCH_FROM='--find-links DIR'
TORCH_FROM ?= --torch-backend cpu
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade) $(TORCH_FROM)

.PHONY: help study sweep site docs test test-slow test-notebooks lab bench calibrate distances ancestors gpu-study nodes-study loader-study commits-study plan-study nemo-env duckdb-wasm notebooks outputs-check lock readme clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^$$/q' ; sed -n 's/^#   //p' Makefile

# --- set-up: one stamp a set of packages, so that the second time is quick ---------------------------------------------

# nbdev-export writes pyproject.toml anew each time; only another content is a reason to set up again.
.venv/.pyproject.toml: always
	@mkdir -p .venv && { cmp -s pyproject.toml $@ || cp pyproject.toml $@; }

.PHONY: always

.venv/.base: .venv/.pyproject.toml
	$(SAY) "Setting up .venv (once; one to three minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "llmbench needs Python 3.11 or newer; type make study PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 2; }
	$(SAY) "  $(TORCH) (first, or another package would choose its own build)"
	@$(PIP) "$(TORCH)"
	$(SAY) "  llmbench and what it needs"
	@$(PIP) -e .
	@touch $@

.venv/.deepspeed: .venv/.base
	$(SAY) "  deepspeed (for zero1, zero2, zero3)"
	@$(PIP) -e '.[deepspeed]'
	@touch $@

.venv/.dev: .venv/.base
	$(SAY) "  nbdev, pytest, coverage, ruff"
	@$(PIP) -e '.[dev]'
	@touch $@

.venv/.browser: .venv/.base
	$(SAY) "  selenium, and a browser where root may install one"
	@$(PIP) -e '.[browser]'
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
	  echo "  no chromium: the browser tests will be skipped; on Debian: apt-get install chromium chromium-driver"
	@touch $@

# program:package. Debian has no kubectl of today; it is taken where a source list has one.
CLUSTER_TOOLS := slurmctld:slurm-wlm munged:munge podman:podman runc:runc debootstrap:debootstrap docker-registry:docker-registry ip:iproute2 kubectl:kubectl
MISSING := for pair in $(CLUSTER_TOOLS); do PATH="$$PATH:/usr/sbin:/sbin" command -v $${pair%%:*} >/dev/null || printf '%s ' $${pair\#\#*:}; done

.venv/.cluster: .venv/.base
	$(SAY) "  schemas and linters; Slurm, podman, a registry and kubectl where root may install them"
	@$(PIP) -e '.[cluster]'
	@missing="$$($(MISSING))"; \
	  if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq; \
	    for package in $$missing; do DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$package >/dev/null 2>&1 || true; done; fi; \
	  missing="$$($(MISSING))"; [ -z "$$missing" ] || echo "  not here: $$missing(the tests that need them will be skipped; on Debian, as root: apt-get install …)"
	@touch $@

.venv/.lock: .venv/.base
	$(SAY) "  uv (50 MB; only make lock needs it)"
	@$(PIP) -e '.[lock]'
	@touch $@

.venv/.bench: .venv/.base
	$(SAY) "  accelerate, transformers, lightning, torchtitan, deepspeed (to be compared with)"
	@$(PIP) -e '.[bench]'
	@touch $@

# 3 MB; products in float8 on cards that have them, and their arithmetic in emulation for a test.
.venv/.fp8: .venv/.base
	$(SAY) "  torchao (for precision: fp8)"
	@$(PIP) -e '.[fp8]'
	@touch $@

.venv/.trackers: .venv/.base
	$(SAY) "  wandb and mlflow-skinny (210 MB), for the trackers' tests"
	@$(PIP) -e '.[export]'
	@touch $@

# aiobotocore[boto3] names the boto3 that fits; without it pip tries one boto3 after another, for longer than ten minutes.
.venv/.store: .venv/.base
	$(SAY) "  s3fs, and moto (95 MB with what they need), a server that speaks S3, for the object store's tests"
	@$(PIP) -e '.[store]' 'aiobotocore[boto3]' 'moto[server]>=5.1'
	@touch $@

.venv/.lab: .venv/.base
	$(SAY) "  jupyterlab"
	@$(PIP) -e '.[lab]'
	@touch $@

# NeMo wants older versions of numpy, transformers and lightning than we do, so it never shares an environment with us.
.venv-nemo/.ready: docker/nemo.txt
	$(SAY) "Setting up .venv-nemo (once; several minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || { echo "llmbench with NeMo 2.7.3 needs Python 3.11 or 3.12; type make nemo-env PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv .venv-nemo
	@$(NEMO_PIP) "$(TORCH)"
	@$(NEMO_PIP) -r docker/nemo.txt
	@$(NEMO_PIP) --no-deps $(NEMO)
	@.venv-nemo/bin/python -W ignore -c 'from nemo.collections import llm; [getattr(llm, n).pretrain_recipe for n in ("llama31_8b", "qwen25_7b", "mistral_7b")]' 2>&1 | tail -3; exit $${PIPESTATUS[0]}
	@touch $@

# llmbench is installed there without what it needs: the scripts of its backend take only what NeMo has brought.
.venv-nemo/.llmbench: .venv-nemo/.ready
	@$(NEMO_PIP) --no-deps -e .
	@touch $@

# --- what people type -----------------------------------------------------------------------------------------------

study: .venv/.deepspeed
	$(SAY) "Training the default study"
	@status=0; $(BIN)/llmbench sweep $(FORCE_FLAG) || status=$$?; \
	  [ $$status -eq 2 ] && exit 2; \
	  printf '\033[1m%s\033[0m\n' "Building the site"; $(BIN)/llmbench report && exit $$status

sweep: .venv/.deepspeed
	@$(BIN)/llmbench sweep $(FORCE_FLAG)

site: .venv/.base
	@$(BIN)/llmbench report

# The same with every notebook as a page: nothing is executed, the stored outputs are shown.
docs: .venv/.base
	@$(BIN)/llmbench report --docs

# Kernels inherit it, for the reason that stands at `test`: notebooks start ranks and threads as tests do.
# The repository is the root, so that results and executed notebooks can be opened, too. JupyterLab asks
# no server for updates or news. It refuses to start as root, which is the usual user of a container.
LAB_ARGS ?=
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
lab: .venv/.lab .venv/.deepspeed
	@$(if $(AS_ROOT),echo "You are root and JupyterLab starts with --allow-root: its notebooks may change every file of this machine or container.")
	@OMP_WAIT_POLICY=passive $(BIN)/jupyter lab --ServerApp.root_dir='$(CURDIR)' --LabApp.default_url=/lab/tree/nbs/guides/index.ipynb \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --LabApp.news_url=None $(AS_ROOT) $(LAB_ARGS)

GROWTH_RUNS ?= 10,100,1000,10000,100000
bench: .venv/.bench
	$(SAY) "A step of llmbench beside a bare loop, interleaved"
	@status=0; $(BIN)/python -m llmbench.bench.peers --peers again,harness --repeats 5 --rounds 30 --out results/bench/overhead.json || status=$$?; \
	  printf '\033[1m%s\033[0m\n' "The same beside other frameworks"; \
	  $(BIN)/python -m llmbench.bench.peers --repeats 5 --rounds 20 --out results/bench/peers.json || status=$$?; \
	  printf '\033[1m%s\033[0m\n' "What llmbench's own commands take as results grow"; \
	  $(BIN)/python -m llmbench.bench.growth --runs $(GROWTH_RUNS) --site-up-to 1000 --out results/bench/growth.json && exit $$status

# Minutes: fits the weights of llmbench expect on the published rows, and scores them on publishers that were left out; CHECK=1 writes nothing.
distances: .venv/.dev
	$(SAY) "How much a setting may change a published throughput"
	@$(BIN)/python -m llmbench.bench.distances $(if $(CHECK),--check)

# Seconds: fits the planner's constants to the published rows; CHECK=1 compares and writes nothing; SCORE=1 (minutes) also leaves out each publisher and each source.
calibrate: .venv/.dev
	$(SAY) "The constants of llmbench plan"
	@OMP_NUM_THREADS=1 $(BIN)/python -m llmbench.bench.planner $(if $(CHECK),--check) $(if $(SCORE),--score)

ancestors: .venv/.deepspeed
	$(SAY) "What the three ancestors did, typed here"
	@$(BIN)/python -m llmbench.bench.ancestors $(if $(SLOW),--slow) --out results/bench/ancestors.json

nemo-env: .venv-nemo/.llmbench
	@echo "NeMo 2.7.3 is in .venv-nemo; now type: llmbench backend nemo params/cpu/single.yaml"

gpu-study: .venv/.deepspeed .venv/.bench .venv/.fp8
	$(SAY) "Training on this machine's GPU: $(GPU_STUDIES)"
	@status=0; for study in $(GPU_STUDIES); do \
	    $(BIN)/llmbench sweep $$study --direct $(FORCE_FLAG) || status=$$?; [ $$status -ne 2 ] || exit 2; done; \
	  printf '\033[1m%s\033[0m\n' "llmbench and torchtitan interleaved on the same card (pip install '.[bench]' brings torchtitan)"; \
	  $(BIN)/python -m llmbench.bench.peers --request $(GPU_PEERS) --reference torchtitan --peers harness --repeats 3 --rounds 15 --out results/bench/card.json || status=$$?; \
	  $(BIN)/llmbench report && exit $$status

# Three hosts on cables of 1 Gb/s that exist only while it runs (network namespaces: Linux, root). git is told where the program comes
# from, because a host starts in the folder of its run.
NODES_RESULTS ?= results
nodes-study: .venv/.deepspeed
	$(SAY) "Training on one, two and three hosts with cables of 1 Gb/s"
	@$(BIN)/python tests/hosts.py 3 --mbit 1000 -- $(BIN)/llmbench launch ssh params/studies/cpu-nodes-1gbit.yaml --ranks-per-node 1 --submit $(FORCE_FLAG) \
	  --results $(NODES_RESULTS) -s 'shell={shell}' -s 'hosts={hosts}' -s 'folder={folder}/runs' -s 'python={python}' -s env.OMP_NUM_THREADS=1 -s 'env.PYTHONPATH=$(CURDIR)' \
	  -s 'env.GIT_DIR=$(CURDIR)/.git' -s 'env.GIT_WORK_TREE=$(CURDIR)' -s 'env.LLMBENCH_COMMAND=make nodes-study'

# The same tokens from memory and from a disk of 25 reads per second (root, a loop device, control groups of version 1).
LOADER_RESULTS ?= results
loader-study: .venv/.deepspeed .venv/.bench
	$(SAY) "Training on tokens from memory and from a slow disk, under six frameworks"
	@OMP_WAIT_POLICY=passive LLMBENCH_COMMAND='make loader-study' $(BIN)/python -m llmbench.bench.beside.loader_study --results $(LOADER_RESULTS) $(FORCE_FLAG)

# The last commit of each day in turns, on a quiet machine; the page History shows them. COMMITS: others, the oldest first.
COMMITS ?= $(shell git log --first-parent --format='%cs %h' | awk '!seen[$$1]++ {print $$2}' | tac)
COMMITS_RESULTS ?= results
commits-study: .venv/.base
	$(SAY) "Training the same requests at several commits, in turns"
	@OMP_WAIT_POLICY=passive LLMBENCH_COMMAND='make commits-study' $(BIN)/python -m llmbench.bench.beside.commits_study $(COMMITS) --results $(COMMITS_RESULTS)

# What `llmbench plan --calibrate` learns and what it predicts, turn by turn, so that other load meets all of them (root, for the hosts).
# A turn is one repeat of every request: finished repeats are skipped.
PLAN_RESULTS ?= results
PLAN_TURNS ?= 5
PLAN_STUDIES := cpu-plan cpu-plan-1core cpu-plan-1gbit-1core cpu-plan-1gbit
PLAN_HOSTS = -- $(BIN)/llmbench launch ssh $(PLAN_RESULTS)/.turns/$(1).yaml --ranks-per-node 1 --submit $(FORCE_FLAG) --results $(PLAN_RESULTS) -s 'shell={shell}' -s 'hosts={hosts}' \
  -s 'folder={folder}/runs' -s 'python={python}' -s env.OMP_NUM_THREADS=1 -s 'env.PYTHONPATH=$(CURDIR)' -s 'env.GIT_DIR=$(CURDIR)/.git' -s 'env.GIT_WORK_TREE=$(CURDIR)' -s 'env.LLMBENCH_COMMAND=make plan-study'
plan-study: .venv/.deepspeed
	$(SAY) "Six strategies on one to four ranks, on shared cores and on links of 1 Gb/s, in $(PLAN_TURNS) turns"
	@mkdir -p $(PLAN_RESULTS)/.turns; export LLMBENCH_COMMAND='make plan-study'; for turn in $$(seq $(PLAN_TURNS)); do \
	  for study in $(PLAN_STUDIES); do sed "s/^repeats: .*/repeats: $$turn/" params/studies/$$study.yaml > $(PLAN_RESULTS)/.turns/$$study.yaml || exit 1; done; \
	  $(BIN)/llmbench sweep $(PLAN_RESULTS)/.turns/cpu-plan.yaml --direct --results $(PLAN_RESULTS) $(FORCE_FLAG) || exit 1; \
	  taskset -c 0 $(BIN)/llmbench sweep $(PLAN_RESULTS)/.turns/cpu-plan-1core.yaml --direct --results $(PLAN_RESULTS) $(FORCE_FLAG) || exit 1; \
	  taskset -c 0 $(BIN)/python tests/hosts.py 2 --mbit 1000 $(call PLAN_HOSTS,cpu-plan-1gbit-1core) || exit 1; \
	  $(BIN)/python tests/hosts.py 4 --mbit 1000 $(call PLAN_HOSTS,cpu-plan-1gbit) || exit 1; \
	done; rm -r $(PLAN_RESULTS)/.turns
	@$(BIN)/llmbench plan --calibrate $(PLAN_RESULTS)

# --- tests ----------------------------------------------------------------------------------------------------------

# COVER=1 prints the coverage of tests and notebooks, at half as much time again; COVER=all follows ranks and launchers, too.
# Workers wait for processes and deadlines half of their time, so that three keep two cores busy; passive: threads that wait for each other sleep instead of spinning.
# Compiled once: hundreds of processes import the package, and an environment may forbid them to write what they compiled.
COVERED := $(if $(COVER),coverage run -m,python -m)
test: .venv/.deepspeed .venv/.dev .venv/.browser
	$(SAY) "Tests of the house, of processes and pages, and every notebook against the exported package"
	@rm -f .coverage .coverage.*; $(BIN)/python -m compileall -q --invalidation-mode checked-hash llmbench
	@export OMP_WAIT_POLICY=passive COVER=$(COVER); status=0; $(BIN)/$(COVERED) pytest -q -m 'not slow' -n $(TEST_WORKERS) --dist worksteal --durations=15 tests || status=$$?; \
	  $(if $(COVER),$(BIN)/coverage combine -q; $(BIN)/coverage report --sort=cover;) exit $$status

test-notebooks: .venv/.deepspeed .venv/.dev
	@OMP_WAIT_POLICY=passive $(BIN)/nbdev-test --n-workers 2

test-slow: .venv/.bench .venv/.dev .venv/.browser .venv/.cluster .venv/.trackers .venv/.fp8 .venv/.store
	$(SAY) "Slow tests"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q -m slow $(if $(SLOW_WORKERS),-n $(SLOW_WORKERS) --dist loadfile) --durations=25 -rs tests

# DuckDB for the page SQL of a site: llmbench report --duckdb .venv/duckdb-wasm. Two packages from the npm registry; no script of theirs runs.
DUCKDB_WASM := .venv/duckdb-wasm
NPM := .venv/npm/node_modules
duckdb-wasm:
	$(SAY) "Bundling DuckDB-WASM and Arrow into $(DUCKDB_WASM)"
	@command -v npm >/dev/null || { echo "  needs npm (Debian: apt-get install npm)"; exit 1; }
	@npm install --prefix .venv/npm --no-audit --no-fund --ignore-scripts --silent @duckdb/duckdb-wasm@1.32.0 esbuild@0.28.2
	@rm -rf $(DUCKDB_WASM).partial && mkdir -p $(DUCKDB_WASM).partial
	@NODE_PATH=$(NPM) $(NPM)/.bin/esbuild llmbench/report/templates/ask_engine.mjs --bundle --format=esm --minify --log-level=warning --outfile=$(DUCKDB_WASM).partial/duckdb.js
	@cp $(NPM)/@duckdb/duckdb-wasm/dist/duckdb-browser-eh.worker.js $(DUCKDB_WASM).partial/duckdb-worker.js
	@cp $(NPM)/@duckdb/duckdb-wasm/dist/duckdb-eh.wasm $(DUCKDB_WASM).partial/duckdb.wasm
	@{ echo "DuckDB-WASM $$(sed -n 's/.*"version": "\(.*\)".*/\1/p' $(NPM)/@duckdb/duckdb-wasm/package.json | head -1): MIT, https://github.com/duckdb/duckdb-wasm"; cat $(NPM)/apache-arrow/LICENSE.txt; } > $(DUCKDB_WASM).partial/LICENSES.txt
	@rm -rf $(DUCKDB_WASM) && mv $(DUCKDB_WASM).partial $(DUCKDB_WASM)

# --- notebooks ------------------------------------------------------------------------------------------------------

# ruff first, because `make test` refuses what it would change; the second format is for the exported modules.
notebooks: .venv/.dev
	$(SAY) "Formatting, exporting nbs/ to llmbench/, cleaning the notebooks, writing README.md, docs/parameters.md, docs/reference.md and the tables of rooms and tests"
	@$(BIN)/ruff check --fix --quiet . && $(BIN)/ruff format --quiet . && $(BIN)/nbdev-export && $(BIN)/nbdev-clean && $(BIN)/python tests/readme.py && $(BIN)/python tests/reference.py && $(BIN)/ruff format --quiet .

# Where an output is not stored, or its words are no longer those of the code; WRITE=1 stores the new ones, SLOW=1 runs slow cells, too. Minutes: name rooms or notebooks in NB.
outputs-check: .venv/.deepspeed .venv/.dev
	@$(BIN)/python tests/outputs.py $(NB) $(if $(WRITE),--write) $(if $(SLOW),--slow)

# Universal: one file for every Python and system, by markers. torch's GPU builds come with their base images, so only the rest is locked for them.
lock: .venv/.lock
	$(SAY) "Writing docker/requirements.cpu.lock, requirements.gpu.lock and requirements.nemo.lock"
	@echo '$(TORCH)+cpu' > .venv/torch.in
	@$(LOCK) docker/requirements.in .venv/torch.in -o docker/requirements.cpu.lock
	@$(LOCK) docker/requirements.in docker/requirements.gpu.in .venv/torch.in --no-emit-package torch -o docker/requirements.gpu.lock
	@$(LOCK) docker/requirements.in docker/requirements.gpu.in docker/nemo.txt .venv/torch.in --no-emit-package torch -o docker/requirements.nemo.lock
	@echo '$(NEMO)' | $(LOCK) - --no-deps --no-header >> docker/requirements.nemo.lock
	@$(LOCK) docker/requirements.build.in --constraint docker/requirements.cpu.lock -o docker/requirements.build.lock

clean:
	rm -rf reports/_site reports/assets build dist *.egg-info .coverage .coverage.*
