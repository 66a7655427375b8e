# README's two commands are `make demo` and `make test`; each sets up what it needs.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
HYPOTHESIS_PROFILE ?= quick
HOURS ?= 1
# For tests that take no time but the processor's; those with processes and a JVM run file by file.
PARALLEL := -n auto --dist worksteal
OF_BROKERS := tests/sim/test_several_brokers_random.py
BY_FILE := --dist loadfile --no-loadscope-reorder # tests/conftest.py has an order
PROTOS := $(addprefix pulsark/,wire/pulsar.proto storage/proto/cursor.proto storage/proto/bookkeeper.proto)
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
# Tests start a thousand processes, and each would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test strangers lint lint-types lint-sources check format sim planted mutants chaos chaos-long bench docs-test test-clients test-suite proto lock clean

help: ## what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP) ## create .venv and install everything once
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: $(PYTHON) is not on the PATH (or set PYTHON=)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.cache/jars.ok: $(STAMP)
	$(BIN)/python -m pulsark.datasource.jars
	mkdir -p $(@D) && touch $@

# Classes of Spark as a JVM maps them: a session of the tests starts in two thirds of the time.
.cache/spark.jsa: .cache/jars.ok
	$(BIN)/python -m tests.support.spark_archive $@
test strangers docs-test: export SPARK_SUBMIT_OPTS := -XX:SharedArchiveFile=$(abspath .cache/spark.jsa) -Xlog:disable

demo: $(STAMP) .cache/jars.ok ## the flights of 2013 through a topic into a Spark stream
	$(BIN)/python -m examples.flights $(DEMO_ARGS)

test: $(STAMP) .cache/spark.jsa ## everything that CI runs, in about 25 minutes
	$(BIN)/python -m pytest -m 'not chaos' $(PARALLEL) tests/unit tests/contracts tests/sim tests/scripts $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m 'not chaos' -n 4 $(BY_FILE) tests/integration tests/hostile tests/fuzz $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m 'not chaos and not strangers' -n 2 $(BY_FILE) tests/spark tests/strangers $(PYTEST_ARGS)

strangers: $(STAMP) .cache/spark.jsa ## what outsiders would break: engines, routes, budgets, and every reported case
	$(BIN)/python -m pytest -n 2 $(BY_FILE) tests/strangers $(PYTEST_ARGS)

lint: $(STAMP) ## format, lint, types and dead code
	$(MAKE) --jobs 2 --output-sync lint-types lint-sources

lint-types: $(STAMP)
	$(BIN)/mypy
	! $(BIN)/mypy --explicit-package-bases tests | grep unused-coroutine # such a test cannot fail

lint-sources: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	! $(BIN)/vulture | grep '^pulsark' # tests count as users, and may have more than they use

check: lint ## what lint checks, then the unit tests and scripts
	$(BIN)/python -m pytest $(PARALLEL) tests/unit tests/contracts tests/scripts -q $(PYTEST_ARGS)

format: $(STAMP) ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: export PULSARK_TEST_DEEP := 1
sim: $(STAMP) ## crash the storage at every disk step, and a broker at random (SEED= replays, SEEDS= runs more)
	$(BIN)/python -m pytest $(PARALLEL) tests/sim --ignore $(OF_BROKERS) -q $(PYTEST_ARGS)
	SEEDS=$(or $(SEEDS),1000) $(BIN)/python -m pytest $(PARALLEL) $(OF_BROKERS) -q $(PYTEST_ARGS)

planted: $(STAMP) ## plant each known bug in a copy of the sources, and see which tests notice
	$(BIN)/python -m tests.sim.planted $(PLANTED_ARGS)

mutants: $(STAMP) .cache/jars.ok ## change the code of rooms at random, and see whether their tests notice (ROOM=, COUNT=60, SEED=)
	$(BIN)/python -m tests.mutants $(ROOM) --count $(or $(COUNT),60) $(if $(SEED),--seed $(SEED)) $(MUTANTS_ARGS)

chaos: $(STAMP) .cache/jars.ok ## faults of brokers, bookies, ZooKeeper and stores, hostile clients, simulation, in about HOURS= (1)
	$(BIN)/python -m tests.chaos --hours $(HOURS) $(PYTEST_ARGS)

chaos-long: $(STAMP) .cache/jars.ok ## streaming queries and 20 to 100 kills, 10,000 topics: half an hour each
	$(BIN)/python -m pytest -m long tests/spark -q $(PYTEST_ARGS)

test-clients: $(STAMP) ## the official Python, Java and Go clients; docs/clients.md says which ran
	$(BIN)/python -m pytest -m 'not chaos' -n 3 $(BY_FILE) tests/clients -q --record $(PYTEST_ARGS)
	$(BIN)/python -m tests.docs.clients --write

test-suite: $(STAMP) ## the official Python client's own tests; FOLDER= is their checkout
	$(BIN)/python -m tests.clients.official_suite $(or $(FOLDER),$(error FOLDER= is needed: a checkout of apache/pulsar-client-python)) $(SUITE_ARGS)

bench: $(STAMP) ## ratios against Apache Pulsar; CHECK=1 exits 1 below a threshold
	$(BIN)/python -m benchmarks$(if $(BENCH_ARGS),.compare) $(if $(CHECK),--check) $(BENCH_ARGS)

docs-test: $(STAMP) .cache/spark.jsa ## run every command and snippet of the docs
	$(BIN)/python -m pytest tests/docs -q $(PYTEST_ARGS)

# An older protoc than the installed one, because code it makes also runs with older runtimes.
# The stubs are repaired where a name of the schema collides with Python or with a message.
PROTOC := .cache/protoc/bin/python
proto: ## compile the schemas
	test -x $(PROTOC) || $(PYTHON) -m venv .cache/protoc
	$(PROTOC) -m pip install --quiet --disable-pip-version-check grpcio-tools==1.74.0
	$(PROTOC) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)
	sed -i -e '/^ *None: /d' -e '/^    KeyValue: Schema.Type$$/d' \
	  -e 's/_Mapping\]/_Mapping[str, _Any]]/g' \
	  -e 's/import ClassVar as _ClassVar/import Any as _Any, ClassVar as _ClassVar/' \
	  $(PROTOS:.proto=_pb2.pyi)

lock: $(STAMP) ## write the versions that are installed to constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^pulsark' > constraints.txt

clean: ## remove what the build made
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
