# make setup   prepare .venv (Python >= 3.11 is all it needs)
# make run     start a database, a busy worker and the dashboard
# make test    everything CI runs
# make chaos   the scenarios of tests/chaos at full length
# make older   all tests of the protocol on every older PostgreSQL of this machine
# make split   all tests of the protocol, races, models and chaos with the hot table split by part
# make test-citus  queues on the nodes of a Citus cluster: see CONTRIBUTING.md
# make pooled  the tests of the client and the worker behind PgBouncer
# make audit   look for known holes in what is pinned
# make matrix  the wheel with the lowest and the newest dependencies, on every Python of this machine
# make conformance  Django's own tests for backends of its Tasks, from PyPI, against ours
# make mutants plant faults one by one and see the tests of what they break fail

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# In the order of tests/conftest.py, where the longest files stand first.
PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# The tests start hundreds of programs: without this each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup dashboard run matrix conformance test test-citus older split pooled chaos mutants lint fmt bench lock audit clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(BIN)/python -c pass 2>/dev/null || { \
	  python=; for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	    then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "holdfast needs Python 3.11 or newer with its venv module (Debian, Ubuntu: apt install python3-venv)." >&2; \
	    echo "Install one, or name it: make PYTHON=/path/to/python3 setup" >&2; \
	    exit 1; \
	  fi; \
	  "$$python" -m venv --clear $(VENV); \
	}
	@echo "preparing $(VENV)"
# The lock names everything that is needed. Left to look for itself, pip asks for the newest release of a package
# that another one names with an extra, and refuses it because the lock has an older one.
	@$(PIP) install --no-deps --require-hashes --only-binary :all: -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# Node comes from a Python package; nothing is built if nothing has changed.
dashboard: setup
	@$(BIN)/python dashboard/build.py

run: setup dashboard
	@$(BIN)/holdfast dev examples/shop/app.py

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/generate_sync_client.py --check
	$(BIN)/python tools/generate_fields.py --check
	$(BIN)/python tools/generate_contract.py --check
	$(BIN)/python dashboard/build.py check

# What the protocol promises is tested a second time on other ground: with the hot table split by part, as a sharded
# cluster has it, on the oldest PostgreSQL that Debian's packages brought to this machine, or else on the same one.
# Left out there, and run by `make older` and `make split`: names and texts of every sort, the million jobs, what a
# hundred days and a year leave behind, and two thirds of what the planner may have been told, of which each sort is
# still tried with its largest burst; that the models bite, and scenarios of chaos that are about time. The lease
# machine and the ways to store jobs are led through a third of their examples there.
OLDEST := $(patsubst %/postgres,%,$(firstword $(wildcard /usr/lib/postgresql/1[4-7]/bin/postgres)))
PLANS := tests/sql/test_plans.py::test_a_statement_takes_what_it_should_and_reads_little
SAME_ON_ALL := --ignore tests/sql/test_injection.py --ignore tests/sql/test_million.py \
  --deselect tests/sql/test_activity.py::test_a_hundred_days_leave_only_those_that_are_kept \
  --deselect tests/sql/test_metrics.py::test_a_year_of_samples_is_kept_in_a_bounded_number_of_rows \
  --deselect "$(PLANS)[1-" --deselect "$(PLANS)[2-" --deselect "$(PLANS)[3-" \
  --deselect "$(PLANS)[0-then-60-" --deselect "$(PLANS)[emptied and vacuumed-then-60-" \
  --deselect tests/model/test_lease_machine.py::test_the_machine_finds_a_planted_bug \
  --deselect tests/model/test_schedule_machine.py::test_the_machine_finds_a_fire_that_does_not_compare
SPLIT_TOO := tests/sql tests/races tests/model tests/chaos/test_soak.py tests/chaos/test_crashes.py \
  tests/chaos/test_lanes.py tests/chaos/test_steps.py

# Each process of a parallel run has a server of its own. The browser's driver keeps an event loop running, so
# that its tests come after the others. One more process than is needed to keep two cores busy: under faults a
# test waits two thirds of its time, for leases to run out and servers to come back.
# The linters, which use one core, run beside the first tests; what they say is shown after those.
test: setup dashboard
	@$(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & linters=$$!; \
	  echo "split by part, on $(or $(OLDEST),the PostgreSQL of the wheel: none of 14 to 17 is in /usr/lib/postgresql)"; \
	  HOLDFAST_TEST_SPLIT=1 HOLDFAST_TEST_PG_BIN=$(OLDEST) HOLDFAST_TEST_AGAIN=1 \
	  $(PYTEST) --quiet $(SPLIT_TOO) $(SAME_ON_ALL); tested=$$?; \
	  wait $$linters; linted=$$?; cat $(VENV)/lint.log; exit $$((tested + linted))
	$(PYTEST) --numprocesses 4 --ignore tests/browser
	$(PYTEST) tests/browser

older: setup
	@for bin in /usr/lib/postgresql/1[4-7]/bin; do \
	  if [ -x "$$bin/postgres" ]; then \
	    echo "tests/sql on $$("$$bin/postgres" --version)"; \
	    HOLDFAST_TEST_PG_BIN="$$bin" $(PYTEST) --quiet tests/sql || exit 1; \
	  else \
	    echo "tests/sql on PostgreSQL 14 to 17: skipped, none in /usr/lib/postgresql"; \
	  fi; \
	done

split: setup
	HOLDFAST_TEST_SPLIT=1 $(PYTEST) --numprocesses 4 --quiet tests/sql tests/races tests/model tests/chaos

# HOLDFAST_TEST_CITUS_BIN names the programs of a PostgreSQL with Citus, of which a cluster is started on loopback, or
# HOLDFAST_TEST_CITUS_DSN the coordinator of one. With neither, these tests are skipped and say so. The others have
# the protocol's own tests on a node, without those that wait for the notification of an enqueue from another one.
test-citus: setup
	$(BIN)/pytest --quiet tests/citus
	$(BIN)/python -m tests.citus -k "not woken and not wake and not idle and not notif"
	$(BIN)/python -m tests.citus --here

# Through PgBouncer in transaction mode, with two connections to the server. Another one:
# HOLDFAST_TEST_PGBOUNCER=/path/to/pgbouncer
pooled: setup
	@$(BIN)/python -c "from tests.pgbouncer import BINARY; exit(not BINARY)" \
	  || { echo "pgbouncer is not installed (Debian, Ubuntu: apt install pgbouncer)" >&2; exit 1; }
	HOLDFAST_TEST_POOLED=1 $(PYTEST) --quiet tests/client tests/pooler tests/worker

chaos: setup
	$(BIN)/python -m tests.chaos --long

# Some of it: make matrix ARGS="--only 3.13 --resolution highest"
matrix: setup dashboard
	@$(PIP) install uv==0.13.7
	$(BIN)/python tools/matrix.py $(ARGS)

# With another Django: make conformance ARGS="--django 6.0"
conformance: setup dashboard
	@$(PIP) install uv==0.13.7
	$(BIN)/python tools/conformance.py $(ARGS)

# Some of them: make mutants ARGS="lane explain". It takes about twenty minutes for all.
mutants: setup
	$(BIN)/python -m tests.mutants $(ARGS)

fmt: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Some of it: make bench ARGS="cycle --rounds 3"; beside other queues: make bench ARGS=peers
bench: setup
	$(BIN)/python -m bench $(ARGS)

# The lock is for every supported Python and platform at once, and names no index.
lock: setup
	$(PIP) install uv==0.13.7
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --no-emit-find-links --no-emit-index-url --extra dev --extra oidc --group test --group build pyproject.toml --output-file requirements.lock

# Known holes in what is pinned. It needs an advisory service; where none can be reached, it says so.
audit: setup
	@$(BIN)/python tools/audit.py

clean:
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache dist build
