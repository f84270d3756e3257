# Every target sets up .venv by itself; nothing is installed elsewhere.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
STAMP  := $(VENV)/.ready
PIP    := $(BIN)/pip install -q --disable-pip-version-check
DEBUG_VENV  := .venv-debug
FUZZ_VENV   := .venv-fuzz
SOURCES := $(shell find ftstan -name '*.pyx' -o -name '*.pxd') setup.py pyproject.toml
PYTEST_ARGS ?=
# Most tests of servers wait for something, so more workers than cores keep both cores busy. The recorded sessions keep
# the recorded times and are played side by side: they have the machine to themselves.
WORKERS ?= 6
# Where the environment forbids it, each of the thousand servers that tests start would compile every module again, and each
# worker every test.
unexport PYTHONDONTWRITEBYTECODE


.PHONY: build check test test-system test-systems test-hosts test-recorded test-gluster retried test-debug test-sanitized prepared coverage mutate fuzz soak-store soak-ft soak-fuzz soak-live soak-model lint demo demo-bridge demo-pipeline bench bench-tuning bench-ft bench-cluster bench-scale bench-spark bench-sql clean proto packages lock lab

build: $(STAMP)

# The package and what it needs to run: enough for the demo.
$(RUNS): $(SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Building ftstan in $(VENV): about a minute on two cores.'
	@$(PIP) -e .
	@touch $@

# The extras are those of the package that is installed, which is not built again.
$(STAMP): $(RUNS)
	@echo 'Installing what the tests, the linters, Spark and Ansible need: about two minutes.'
	@$(PIP) 'ftstan[dev]'
	@# The quicker client of MySQL is built from source, where its headers are.
	@! command -v mariadb_config >/dev/null || $(PIP) 'ftstan[mysqlclient]'
	@touch $@

# A copy of the tree with extensions built with bounds checks and assertions. What else it needs is taken from $(VENV).
DEBUG_TREE := build/debug
$(DEBUG_VENV)/.ready: $(SOURCES) | $(STAMP)
	@test -x $(DEBUG_VENV)/bin/python || $(PYTHON) -m venv $(DEBUG_VENV)
	rm -rf $(DEBUG_TREE) && mkdir -p $(DEBUG_TREE)
	cp -r ftstan setup.py pyproject.toml README.md LICENSE $(DEBUG_TREE)/
	find $(DEBUG_TREE) \( -name '*.so' -o -name '*.c' \) -delete
	echo '$(CURDIR)/'$(VENV)/lib/python*/site-packages > $$(echo $(DEBUG_VENV)/lib/python*/site-packages)/shared.pth
	FTSTAN_DEBUG_BUILD=1 $(DEBUG_VENV)/bin/pip install -q --disable-pip-version-check --no-deps -e ./$(DEBUG_TREE)
	@touch $@

# Regenerates ftstan/wire/pb from proto/; the result is committed.
proto: build
	$(BIN)/python tools/gen_proto.py

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

# What takes one core at a time, side by side ("make -j 3 prepared"): linters, builds with sanitizers, what Node and Ansible need.
prepared: lint $(DEBUG_VENV)/.ready $(FUZZ_VENV)/.ready node_modules/.package-lock.json build/ansible/.ready

node_modules/.package-lock.json: package.json package-lock.json
	npm ci --no-audit --no-fund --silent

# What the Ansible collection needs from others' collections.
build/ansible/.ready: tools/ansible_collections.py $(STAMP)
	$(BIN)/python tools/ansible_collections.py

# What boots hosts, builds packages, starts a JVM or real databases and clusters, measures, shows the demo and drills, plays
# recorded waits or a thousand histories.
DATABASE_TESTS := $(wildcard tests/contract/test_sql_*.py) tests/oracle/test_gosql.py
# First come those that one worker does one after the other for minutes: at the end the others would wait for it.
SYSTEM_TESTS := tests/ansible/test_collection.py $(wildcard tests/ft/test_demo*.py) tests/ft/test_drill.py tests/packaging tests/spark \
	tests/sim/ft/test_many_histories.py \
	$(wildcard tests/ft/test_bench*.py tests/ft/test_bridge_back.py tests/ft/test_bridge_kills.py tests/ft/test_clustered*.py) \
	$(wildcard tests/ft/test_sql_*.py) $(DATABASE_TESTS) tests/compat/test_quick_starts.py
RECORDED_TESTS := tests/compat/players
# Playbooks on virtual hosts: longer than all the others of one file, and one after the other.
HOST_TESTS := tests/ansible/test_hosts.py tests/ansible/test_migrate.py
# What needs a network file system of its own: "make test-gluster".
STORAGE_TESTS := tests/gluster

test: build node_modules/.package-lock.json
	@$(BIN)/python -m tests.suite --compile tests
	$(BIN)/python -m tests.suite -n $(WORKERS) --dist loadgroup --durations 20 $(addprefix --ignore ,$(SYSTEM_TESTS) $(HOST_TESTS) $(RECORDED_TESTS) $(STORAGE_TESTS)) $(PYTEST_ARGS)

# The rest of the suite.
test-system: test-systems test-hosts test-recorded

test-systems: build node_modules/.package-lock.json build/ansible/.ready
	@$(BIN)/python -m tests.suite --compile tests
	$(BIN)/python -m tests.suite -n $(WORKERS) --dist loadgroup --durations 20 $(PYTEST_ARGS) $(SYSTEM_TESTS)

test-hosts: build build/ansible/.ready
	$(BIN)/python -m tests.suite -n 2 --dist loadgroup $(PYTEST_ARGS) $(HOST_TESTS)

test-recorded: build node_modules/.package-lock.json
	$(BIN)/python -m tests.suite $(PYTEST_ARGS) $(RECORDED_TESTS)

# A pair on a GlusterFS volume in network namespaces, as root; glusterfs-server is Debian's package.
test-gluster: build
	$(BIN)/python -m tests.suite $(PYTEST_ARGS) $(STORAGE_TESTS)

# For the inner loop: no servers, no databases, no simulated histories, and nothing that takes seconds by itself. Two
# workers: each reads ten thousand tests first.
CHECK_LESS := $(DATABASE_TESTS) tests/unit/stores/sql $(wildcard tests/unit/ft/test_attack*.py tests/unit/ft/test_review*.py) \
	$(addprefix tests/unit/,drill/test_play.py monitor/test_alerts.py repository/test_suite.py stores/test_grown_files.py)
check: lint
	$(BIN)/python -m pytest -q -n 2 -m 'not processes and not slow' $(addprefix --ignore ,$(CHECK_LESS)) $(PYTEST_ARGS) \
		tests/unit tests/contract tests/reference

# Fails if tests were run again that should not need it (tests/suite.py).
retried: build
	$(BIN)/python -m tests.suite --retried

# What runs the extensions, against ones built with bounds checks and assertions: all of it in process, and servers under
# load, kills and failing storage. Left out are long waits of the same code: recorded sessions, operators' commands,
# networks and mounts that are cut, the demo and the benchmarks; and what runs no extension: pages, options, the repository.
# And left out is what an installed server loads, and how quickly it starts: here packages are borrowed from $(VENV).
# Also left out are whole groups in simulation: their threads are greenlets, whose stacks the sanitizer cannot follow; and
# the look for leaks of memory, which the sanitizer holds back. And so are variants that are broken on purpose: that the
# tests notice them has been shown before; and tools that die at each of their calls, which run what histories run.
# Test modules that can load no extension are found by what they import (tests/extensions.py).
GREENLETS := $(shell grep -rlE '^from (tests\.sim\.ft(\.(group|test_[a-z_0-9]+))?|greenlet) import' --include='test_*.py' tests)
DEBUG_PLACES := $(addprefix tests/,contract fuzz model oracle sim unit)
DEBUG_SERVERS := $(addprefix tests/ft/test_,kill9.py pair.py planned_handover.py standalone.py storage.py embedding.py)
DEBUG_COMPAT := $(filter-out %/test_quick_starts.py,$(wildcard tests/compat/test_*.py))
# "make test-sanitized DEBUG_SERVERS= DEBUG_COMPAT= DEBUG_LESS=tests/sim" is what runs in process and waits for nobody.
DEBUG_LESS ?=
# Servers come first: what waits at the end would leave the processors idle.
DEBUG_TESTS = $(DEBUG_SERVERS) \
	$(DEBUG_PLACES) $(shell $(BIN)/python -m tests.extensions $(DEBUG_PLACES)) \
	$(addprefix --ignore ,$(GREENLETS)) --ignore tests/fuzz/test_live.py \
	$(addprefix --ignore tests/unit/,cli/test_loaded.py config docs lab packaging reports repository wire/test_proto.py) \
	$(DEBUG_COMPAT) $(addprefix --ignore ,$(DEBUG_LESS)) \
	-k 'not is_caught and not can_be_run_again'
SANITIZED = LD_PRELOAD=$$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc FTSTAN_SANITIZED=1
test-debug: test-sanitized
	$(MAKE) fuzz FUZZ_SECONDS=60

test-sanitized: $(DEBUG_VENV)/.ready node_modules/.package-lock.json
	tools/sync_debug_tree.sh $(DEBUG_TREE)
	cd $(DEBUG_TREE) && $(SANITIZED) ../../$(DEBUG_VENV)/bin/python -m tests.suite --compile \
		$(DEBUG_PLACES) tests/compat
	cd $(DEBUG_TREE) && $(SANITIZED) FTSTAN_RETRIED='$(CURDIR)/build/retried.jsonl' \
		PYTEST_ADDOPTS='--timeout 900' ../../$(DEBUG_VENV)/bin/python -m tests.suite -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS) $(DEBUG_TESTS)

# Which branches of broker/, ft/ and stores/file/ are taken by their tests and simulations (docs/testing.md); COVERAGE_ARGS=--report
# prints the figures of the last run again.
COVERAGE_ARGS ?=
coverage: build
	@$(PIP) 'ftstan[measure]'
	$(BIN)/python -m tools.branch_coverage --workers $(WORKERS) $(COVERAGE_ARGS)

# Small changes of ft/ and stores/file/recovery/, some drawn at random, that the quick tests must notice (docs/testing.md);
# MUTATE_ARGS="--count 500 --seed 7 --only epoch".
MUTATE_ARGS ?=
mutate: build
	@$(PIP) 'ftstan[measure]'
	$(BIN)/python -m tools.mutation $(MUTATE_ARGS)

# A copy of the tree with extensions built by clang, with sanitizers and with counters by which libFuzzer steers.
FUZZ_TREE := build/fuzz
$(FUZZ_VENV)/.ready: $(SOURCES) | $(STAMP)
	@test -x $(FUZZ_VENV)/bin/python || $(PYTHON) -m venv $(FUZZ_VENV)
	rm -rf $(FUZZ_TREE) && mkdir -p $(FUZZ_TREE)
	cp -r ftstan setup.py pyproject.toml README.md LICENSE $(FUZZ_TREE)/
	find $(FUZZ_TREE) \( -name '*.so' -o -name '*.c' \) -delete
	FTSTAN_FUZZ_BUILD=1 CC=clang LDSHARED='clang -shared' $(FUZZ_VENV)/bin/pip install -q --disable-pip-version-check -e './$(FUZZ_TREE)[fuzz]'
	@touch $@

# Every parser in C on inputs that libFuzzer makes, so many seconds each; the corpora are kept in build/fuzz-corpus.
# FUZZ_TARGETS=codec runs that one, FUZZ_TARGETS='--one codec FILE' that one on a file, whose path begins with a slash.
FUZZ_SECONDS ?= 600
FUZZ_WORKERS ?= 2
FUZZ_TARGETS ?=
fuzz: $(FUZZ_VENV)/.ready
	tools/sync_debug_tree.sh $(FUZZ_TREE)
	mkdir -p build/fuzz-corpus && ln -sfn ../../fuzz-corpus $(FUZZ_TREE)/build/fuzz-corpus
	cd $(FUZZ_TREE) && LD_PRELOAD=$$(../../$(FUZZ_VENV)/bin/python -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
		../../$(FUZZ_VENV)/bin/python -m tests.fuzz.engine $(if $(filter --one,$(FUZZ_TARGETS)),,$(FUZZ_SECONDS) $(FUZZ_WORKERS)) $(FUZZ_TARGETS)

# Simulated histories of the file store until Ctrl-C or a broken invariant; SEED starts where an earlier run stopped.
soak-store: build
	$(BIN)/python -m tests.sim.census $(SEED)

# The same for groups: simulated members, hosts, locks and networks on their worst days.
soak-ft: build
	$(BIN)/python -m tests.sim.ft.census $(SEED)

# Hostile messages until Ctrl-C or a broken invariant.
soak-fuzz: build
	$(BIN)/python -m tests.fuzz.hostile $(SEED)

# COUNT hostile messages for a server with a file store, and a look for leaks.
COUNT ?= 1000000
soak-live: build
	$(BIN)/python -m tests.fuzz.live $(COUNT) $(SEED)

# Histories of clients and servers against the reference until Ctrl-C or a difference.
soak-model: build
	$(BIN)/python -m tests.model $(SEED)

# ARGS="--store postgres" or "--store mysql": the pair on a private database server; it needs the server's package.
# ARGS="--clustered": three nodes of a replicated cluster in place of the pair.
demo: $(RUNS) node_modules/.package-lock.json
	@case '$(ARGS)' in *postgres*|*mysql*) $(PIP) 'ftstan[sql]' ;; esac
	$(BIN)/python -m demo $(ARGS)

# deb and rpm packages with checksums and a list of components, in dist/; as root (tools/packages.py says why).
packages: build
	$(BIN)/python -m tools.packages $(PACKAGES_ARGS)

# Three virtual machines, NFS between them, our packages by our playbooks, drills: docs/lab.md. As root; hours, not part of
# "make test". Arguments go through LAB_ARGS, such as "--from units" or "--list".
LAB_ARGS ?=
lab: build build/ansible/.ready
	$(BIN)/python -m lab $(LAB_ARGS)

# What packages hold, to the byte: packaging/lock, after a change of dependencies. LOCK_ARGS=--upgrade takes newer ones.
lock: build
	$(BIN)/python -m tools.lock_packages $(LOCK_ARGS)

# Messages through stream, archive, audit, replay and restore while a server of the pair is killed; needs Java.
demo-pipeline: build
	$(BIN)/python -m demo.pipeline

# A pair under load is left for JetStream (three servers), with kills, a cut-over and the way back; ARGS="--pause 1" is short.
demo-bridge: build
	$(BIN)/python -m demo.migration $(ARGS)

# Arguments go through BENCH_ARGS, such as "--only publish --compare main".
BENCH_ARGS ?=
bench: build
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

# What the tuning settings of the pipeline are worth on this machine.
bench-tuning: build
	$(BIN)/python -m benchmarks.tuning $(BENCH_ARGS)

# How long a pair does not answer when its active ends.
bench-ft: build
	$(BIN)/python -m benchmarks.ft

# How long a replicated cluster does not answer when its leader ends, BENCH_ARGS="--endings 5 --only SIGTERM".
bench-cluster: build
	$(BIN)/python -m benchmarks.cluster $(BENCH_ARGS)

# What an operation costs with many channels, subscriptions, clients and group members.
bench-scale: build
	$(BIN)/python -m benchmarks.scale

# How fast the log becomes rows of Spark; arguments go through BENCH_ARGS, such as "--count 5000000 --only scan".
bench-spark: build
	$(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

# Patterns, recovery and takeovers on PostgreSQL and MariaDB; it needs the servers' packages.
bench-sql: build
	$(BIN)/python -m benchmarks.sql $(BENCH_ARGS)

clean:
	rm -rf build dist $(VENV) $(DEBUG_VENV) $(FUZZ_VENV) node_modules ftstan.egg-info demo/out .hypothesis .mypy_cache .ruff_cache
	find ftstan -name '*.so' -delete -o -name '*.c' -delete
	find ansible benchmarks demo ftstan lab tests tools -name __pycache__ -prune -exec rm -r {} +
