# Everstep. `make` alone says what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

ROOT := $(CURDIR)
VENV := $(ROOT)/.venv
READY := $(VENV)/.ready
PYTHON ?= python3
BIN := $(VENV)/bin

export PATH := $(BIN):$(PATH):/usr/local/go/bin
export EVERSTEP_PYTHON := $(BIN)/python

# Says what is done and, at the end, how long it took.
define timed
	@echo "==> $(1)"; SECONDS=0; $(2) && echo "<== $(1): $${SECONDS} s"
endef

# What the tests need of Kubernetes, torch and helm. Built once, in minutes; then it takes no time.
PARTS = $(call timed,parts of the test cluster,tests/cluster/cluster build)

PYTEST := $(BIN)/python -m pytest
# Many tests wait: more processes than cores keep two cores busy. What they listen on is their own (tests/loopback.py).
UNIT_PROCESSES ?= 4
CONTRACT_PROCESSES ?= 2
INTEGRATION_PROCESSES ?= 8
SIDE_BY_SIDE := --dist worksteal -n

.PHONY: help
help: ## Show this
	@awk 'BEGIN { FS = ":.*## "; print "Everstep: PyTorch training that goes on when a node dies.\n\nmake TARGET" } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ See it

.PHONY: demo
demo: $(READY) generate-check ## A real four-node Kubernetes, a training job, a power cut (root; KEEP=1 leaves the cluster up)
	@PYTHONPATH=demo:tools:tests/cluster $(BIN)/python -m everstep_demo $(if $(filter-out 0,$(KEEP)),--keep)

##@ Check it

.PHONY: check
check: $(READY) ## Linters, types, architecture, generated files
	$(call timed,ruff check,$(BIN)/ruff check .)
	$(call timed,ruff format,$(BIN)/ruff format --check .)
	$(call timed,mypy --strict,$(BIN)/mypy)
	$(call timed,import contracts,PYTHONPATH=operator:sidecar:trainer_lib $(BIN)/lint-imports)
	$(call timed,generated files,$(MAKE) -s generate-check)

.PHONY: test
test: check test-unit test-contract test-integration test-chart test-cluster ## Checks, then all tests, the quick ones first (root)

.PHONY: test-unit
test-unit: $(READY) ## Functions and classes alone
	$(call timed,unit tests,$(PYTEST) -q $(SIDE_BY_SIDE) $(UNIT_PROCESSES) tests/unit)

.PHONY: test-contract
test-contract: $(READY) ## What the parts say to each other, on a real API server (root)
	$(PARTS)
	$(call timed,contract tests,$(PYTEST) -q $(SIDE_BY_SIDE) $(CONTRACT_PROCESSES) tests/contract)

.PHONY: test-integration
test-integration: $(READY) ## Real processes, without a cluster (root)
	$(PARTS)
	$(call timed,the oldest torch,tests/cluster/cluster build --torch-old)
	$(call timed,integration tests of sidecar and launcher,$(PYTEST) -q $(SIDE_BY_SIDE) $(INTEGRATION_PROCESSES) tests/integration/sidecar tests/integration/launcher)
	$(call timed,integration tests of the library,$(PYTEST) -q tests/integration/library)

.PHONY: test-chart
test-chart: $(READY) ## The Helm chart, with helm itself
	$(PARTS)
	$(call timed,chart tests,$(PYTEST) -q tests/chart)

.PHONY: test-cluster
test-cluster: $(READY) ## Real faults on a real Kubernetes on this machine (root)
	$(PARTS)
	$(call timed,cluster tests,$(PYTEST) tests/cluster)

JOBS ?= 2
.PHONY: mutants
mutants: $(READY) ## Each rule and timer taken out once, JOBS=2 at a time: its tests must fail (ONLY=R7 for some)
	@PYTHONPATH=tests $(BIN)/python tests/mutants/run.py --jobs $(JOBS) $(if $(ONLY),--only $(ONLY))

EXAMPLES ?= 2000
.PHONY: explore
explore: $(READY) ## Tests of properties on EXAMPLES=2000 new examples each; what fails is told with its example
	@EXAMPLES=$(EXAMPLES) $(PYTEST) -q $(SIDE_BY_SIDE) $(UNIT_PROCESSES) --hypothesis-profile explore -m hypothesis tests/unit

RUNS ?= 40
.PHONY: soak-exits
soak-exits: $(READY) ## The example on the oldest torch, RUNS=40 times with all cores busy: each run must end with 0 (root)
	@PYTHONPATH=tests/cluster $(BIN)/python tests/soak/example_exits.py --runs $(RUNS)

##@ Measure it

CYCLES ?= 10
.PHONY: bench-recovery
bench-recovery: $(READY) ## Power cut to the next step, CYCLES=10 times on the test cluster: median and worst (root)
	@PYTHONPATH=tools:tests/cluster:trainer_lib $(BIN)/python bench/recovery.py --cycles $(CYCLES)

WORKERS ?= 8
QUIET ?= 60
.PHONY: bench-operator
bench-operator: JOBS = 1000
bench-operator: $(READY) ## What the operator costs: JOBS=1000 x WORKERS=8 cost in QUIET=60 s, and how fast it acts on lost nodes (root)
	@PYTHONPATH=bench/fleet:tests/contract:tests/cluster:tools:operator:trainer_lib $(BIN)/python -P bench/operator.py --jobs $(JOBS) --workers $(WORKERS) --seconds $(QUIET)

.PHONY: bench-decide
bench-decide: $(READY) ## How long a decision takes for jobs of 10, 100 and 1,000 workers
	@PYTHONPATH=tests:operator:sidecar:trainer_lib $(BIN)/python -P bench/deciding.py

##@ Build it

.PHONY: generate
generate: $(READY) ## Write what is generated: crds/, and the chart's copy of it
	@$(BIN)/python tools/generate.py

.PHONY: generate-check
generate-check: $(READY)
	@$(BIN)/python tools/generate.py --check

.PHONY: format
format: $(READY) ## Format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: wheels
wheels: $(READY) ## Fill build/wheels, the context of `docker build .`
	@$(BIN)/python tools/product_image.py wheels

.PHONY: image
image: $(READY) ## The image as an archive in build/, on the local base (root)
	@$(BIN)/python tools/product_image.py build

##@ The test cluster

.PHONY: cluster-up
cluster-up: $(READY) ## Start the four-node Kubernetes (root); then: tests/cluster/cluster kubectl get nodes
	@tests/cluster/cluster up

.PHONY: cluster-down
cluster-down: $(READY) ## Remove it
	@tests/cluster/cluster down

##@ Housekeeping

.PHONY: clean
clean: ## Remove what was built in this checkout; the cluster's build cache stays
	rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Debian's python3 comes without venv: that package is the only thing that is installed here.
$(READY): pyproject.toml
	@echo "==> Python environment in .venv"; SECONDS=0; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is older than 3.11: make PYTHON=...")'; \
	if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "    installing python3-venv"; apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv >/dev/null; \
	fi; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' hatchling; \
	touch $@; echo "<== Python environment: $${SECONDS} s"
