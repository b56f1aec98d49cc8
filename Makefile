# make demo [FILE=any.log] [KILL=1]  run the demo on real log lines; KILL=1 kills a leading broker
# make quick                         run the tests that start no server, in under 2 minutes
# make test                          run all tests, in under 12 minutes (.ci/run)
# make check                         check style, types and layers, then run all tests
# make wheel                         build dist/*.whl
# make compat                        run other people's clients against a cluster, and the oldest PySpark
# make bench [ONLY=ROW] [QUICK=1]    measure logbus beside Kafka
# make figures [ONLY=NAME]           measure the parts of logbus by themselves
# make soak [SECONDS=600]            run seeds through the simulated cluster
# make soak-groups [SEEDS=1000]      run seeds through the simulated consumer groups
# make stress [SECONDS=600]          run a Spark query while topics are created, extended and deleted
# make chaos [KILLS=100] [CUTS=100]  kill, cut off and corrupt real brokers (as root)
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The oldest PySpark that setup.cfg allows. make test runs the newest.
OLDEST_SPARK := 4.2
OLDEST_VENV  := $(VENV)/pyspark-$(OLDEST_SPARK)
SOURCES := $(shell find broker_lite pyspark_logbus -name '*.py' -o -name '*.md' -o -name py.typed -o -name logbus-python) setup.cfg pyproject.toml README.md
PYTEST_ARGS ?=

.PHONY: help demo quick test check compat compat-spark chaos soak soak-groups stress format bench figures wheel java kcat clients clean

help:
	@sed -n 's/^# //p' Makefile | head -12

# Java is the one thing that pip does not bring.
java:
	@if ! command -v java >/dev/null && [ -z "$$JAVA_HOME" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    (apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless) >&2; \
	  else echo "Java 17 is missing: apt-get install openjdk-17-jre-headless" >&2; exit 1; fi; fi

# Other people's clients, for root from Debian's packages; the tests of what is missing skip and say so.
# RUNLEVEL=1: rsyslog's own service is not started.
clients = missing=; for pair in $(1); do command -v "$${pair%%:*}" >/dev/null || \
  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && missing="$$missing $${pair\#*:}"; }; done; \
  if [ -n "$$missing" ]; then (apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq -o DPkg::Lock::Timeout=120 --no-install-recommends $$missing) >&2 || echo "not installed:$$missing" >&2; fi

kcat:
	@$(call clients,kcat:kcat)

clients:
	@$(call clients,kcat:kcat rsyslogd:rsyslog-kafka mvn:maven npm:npm)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Not with the folder: one that somebody made by hand has them not.
$(VENV)/.build-tools: | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check 'setuptools>=68' wheel
	@touch $@

# The wheel is what is installed and tested: an editable install is invisible to Spark's lookup.
$(VENV)/.wheel: $(VENV)/.build-tools $(SOURCES)
	rm -rf build dist *.egg-info
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	rm -rf build *.egg-info
	@touch $@

wheel: $(VENV)/.wheel

# Dependencies are resolved only when their list changes; the package itself whenever a file did.
$(VENV)/.dependencies-all: setup.cfg | $(VENV)/.wheel
	@echo "Installing logbus with PySpark (some 450 MB to load) into $(VENV): this once, a minute or two …" >&2
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[all]"
	@touch $@

$(VENV)/.dependencies-check: setup.cfg | $(VENV)/.dependencies-all
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[test,check]"
	@touch $@

$(VENV)/.dependencies-compat: setup.cfg | $(VENV)/.dependencies-check
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[compat]"
	@touch $@

$(VENV)/.installed: $(VENV)/.wheel $(VENV)/.dependencies-all
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	@touch $@

demo: java $(VENV)/.installed
	@$(BIN)/logbus demo $(if $(FILE),--file '$(FILE)') $(if $(KILL),--kill)

test: java kcat $(VENV)/.installed $(VENV)/.dependencies-check
	LOGBUS_TEST_INSTALLED=1 $(BIN)/pytest -n 2 --dist loadgroup $(PYTEST_ARGS)

# Decisions, formats and some simulated seeds: no ZooKeeper, no broker, no Spark.
quick: $(VENV)/.installed $(VENV)/.dependencies-check
	LOGBUS_TEST_INSTALLED=1 $(BIN)/pytest -n 2 -q -m "not real and not slow and not compat" -k "not zookeeper" \
	  tests/unit tests/bytes tests/transcripts tests/contract tests/sim/test_sim.py tests/test_*.py $(PYTEST_ARGS)

check: $(VENV)/.installed $(VENV)/.dependencies-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(MAKE) test

# What Debian, pip, mvn, npm and go bring, as their user has set them up; the result is kept.
compat: java clients $(VENV)/.installed $(VENV)/.dependencies-compat
	LOGBUS_TEST_INSTALLED=1 LOGBUS_COMPAT_RESULTS=tests/compat/RESULTS.md \
	  $(BIN)/pytest -m '' tests/compat $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(MAKE) compat-spark)

$(OLDEST_VENV)/.installed: setup.cfg $(VENV)/.wheel
	[ -x $(OLDEST_VENV)/bin/python ] || $(PYTHON) -m venv $(OLDEST_VENV)
	@echo "Installing logbus with PySpark $(OLDEST_SPARK) (some 450 MB to load) into $(OLDEST_VENV) …" >&2
	$(OLDEST_VENV)/bin/python -m pip install -q --disable-pip-version-check \
	  "$$(ls dist/*.whl)[test]" 'pyspark[sql,connect]==$(OLDEST_SPARK).*'
	$(OLDEST_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	@touch $@

# The source and the sink under the oldest PySpark, in an environment of its own; 5 minutes.
compat-spark: java $(OLDEST_VENV)/.installed
	LOGBUS_TEST_INSTALLED=1 $(OLDEST_VENV)/bin/pytest -n 2 --dist loadgroup tests/connector tests/spark $(PYTEST_ARGS)

format: $(VENV)/.dependencies-check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.dependencies-bench: setup.cfg | $(VENV)/.dependencies-all
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[bench]"
	@touch $@

# Side by side with Kafka and others, which Maven brings; benchmarks/RESULTS.md. ONLY=ROW, VARIANT=NAME, QUICK=1, INPUT=FILE.
bench: java $(VENV)/.installed $(VENV)/.dependencies-bench
	@$(call clients,mvn:maven javac:openjdk-17-jdk-headless rabbitmq-server:rabbitmq-server)
	PYTHONPATH=benchmarks $(BIN)/python -P -m peers $(ONLY) $(if $(VARIANT),--variant '$(VARIANT)') $(if $(QUICK),--quick) $(if $(INPUT),--input '$(INPUT)')

# What logbus's own parts cost, without any peer. ONLY=NAME.
figures: java $(VENV)/.installed $(VENV)/.dependencies-check
	$(BIN)/python -P benchmarks/all.py $(ONLY)

# Hundreds of faults in a row under a workload whose history is checked; root, for disks of their own.
chaos: java $(VENV)/.installed $(VENV)/.dependencies-check
	PYTHONPATH=tests $(BIN)/python -P -m faults.chaos $(if $(KILLS),--kills $(KILLS)) $(if $(CUTS),--cuts $(CUTS)) $(if $(PAUSES),--pauses $(PAUSES)) $(if $(ISOLATIONS),--isolations $(ISOLATIONS)) $(if $(FLIPS),--flips $(FLIPS))

# In virtual time: nothing is started and no port is used. The result: benchmarks/results/soak.json
soak: $(VENV)/.installed $(VENV)/.dependencies-check
	PYTHONPATH=tests $(BIN)/python -P -m sim.soak $(if $(filter command line,$(origin SECONDS)),--seconds $(SECONDS)) $(if $(FIRST),--first $(FIRST))

# The four simulations of consumer groups. The result: benchmarks/results/soak-groups.json
soak-groups: $(VENV)/.installed $(VENV)/.dependencies-check
	PYTHONPATH=tests $(BIN)/python -P -m sim.soak_groups $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST))

# What tests/spark/test_long.py does for seconds, for minutes; a failure names its seed (LOGBUS_STRESS_SEED).
stress: java $(VENV)/.installed $(VENV)/.dependencies-check
	LOGBUS_TEST_INSTALLED=1 LOGBUS_STRESS_SECONDS=$(if $(filter command line,$(origin SECONDS)),$(SECONDS),600) \
	  $(BIN)/pytest tests/spark/test_long.py -k come_and_go $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
