# make demo [FILE=any.log] [KILL=1]  run the demo on real log lines; KILL=1 kills a leading broker
# make quick                         run the tests that start no server, in under 2 minutes
# make test                          run all tests, in under 20 minutes (.ci/run)
# make check                         check style, types and layers, then run all tests
# make wheel                         build dist/*.whl
# make compat                        run other people's clients against a cluster, and the oldest PySpark
# make bench [ONLY=ROW] [QUICK=1]    measure logbus beside Kafka
# make docs                          build the documentation site (PLAIN=1: without running notebooks)
# make figures [ONLY=NAME]           measure the parts of logbus by themselves
# make soak [SECONDS=600]            run seeds through the simulated cluster
# make soak-groups [SEEDS=1000]      run seeds through the simulated consumer groups
# make stress [SECONDS=600]          run a Spark query while topics are created, extended and deleted
# make fuzz [SECONDS=600]            feed random input to what clients reach before their login
# make rotation [ROUNDS=20]          rotate certificates, passwords and ACLs under load
# make chaos [KILLS=100] [CUTS=100]  kill, cut off and corrupt real brokers (as root; SECURE=1: with TLS and ACLs)
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The oldest PySpark that setup.cfg allows. make test runs the newest.
OLDEST_SPARK := 4.2
OLDEST_VENV  := $(VENV)/pyspark-$(OLDEST_SPARK)
# With -L, because broker_lite/conf is a symbolic link.
SOURCES := $(shell find -L broker_lite pyspark_logbus -type f ! -path '*/__pycache__/*') setup.cfg pyproject.toml distribution/wheel_backend.py README.md
PYTEST_ARGS ?=

.PHONY: help demo quick test check compat compat-spark chaos soak soak-groups stress rotation fuzz format docs bench figures wheel java programs clients clean

help:
	@sed -n 's/^# //p' Makefile | head -15

# pip installs every dependency except Java.
java:
	@if ! command -v java >/dev/null && [ -z "$$JAVA_HOME" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    (apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless) >&2; \
	  else echo "Java 17 is missing: apt-get install openjdk-17-jre-headless" >&2; exit 1; fi; fi

# Third-party programs from Debian's packages, installed if run as root. Tests of a missing program are skipped.
# RUNLEVEL=1 keeps apt-get from starting the rsyslog service.
clients = missing=; for pair in $(1); do command -v "$${pair%%:*}" >/dev/null || \
  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && missing="$$missing $${pair\#*:}"; }; done; \
  if [ -n "$$missing" ]; then (apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq -o DPkg::Lock::Timeout=120 --no-install-recommends $$missing) >&2 || echo "not installed:$$missing" >&2; fi

programs:
	@$(call clients,kcat:kcat promtool:prometheus chromedriver:chromium-driver zsh:zsh fish:fish)

clients:
	@$(call clients,kcat:kcat rsyslogd:rsyslog-kafka mvn:maven npm:npm)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Separate from the rule of the virtual environment: one that was made by hand lacks the build tools.
$(VENV)/.build-tools: | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check 'setuptools>=68' wheel
	@touch $@

# Tests run against the installed wheel, because Spark does not find data sources of an editable install.
$(VENV)/.wheel: $(VENV)/.build-tools $(SOURCES)
	rm -rf build dist *.egg-info
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	rm -rf build *.egg-info
	@touch $@

wheel: $(VENV)/.wheel

# pip resolves dependencies only after a change of setup.cfg, and reinstalls logbus after a change of any source file.
$(VENV)/.dependencies-all: setup.cfg | $(VENV)/.wheel
	@echo "Installing logbus with PySpark (some 450 MB to load) into $(VENV): this once, a minute or two …" >&2
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[all]"
	@touch $@

$(VENV)/.dependencies-check: setup.cfg | $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[test,check]"
	@touch $@

$(VENV)/.dependencies-compat: setup.cfg | $(VENV)/.dependencies-check
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[compat]"
	@touch $@

$(VENV)/.installed: $(VENV)/.wheel $(VENV)/.dependencies-all
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	@touch $@

# Spark's classes, loaded and verified once for all JVMs of the tests.
$(VENV)/.spark-classes.jsa: tests/support/spark_classes.py | java $(VENV)/.dependencies-all
	@$(BIN)/python tests/support/spark_classes.py $@ >$@.log 2>&1 || { cat $@.log >&2; exit 1; }

demo: java $(VENV)/.installed
	@$(BIN)/logbus demo $(if $(FILE),--file '$(FILE)') $(if $(KILL),--kill)

test: java programs $(VENV)/.installed $(VENV)/.dependencies-check $(VENV)/.spark-classes.jsa
	LOGBUS_TEST_INSTALLED=1 $(BIN)/pytest -n 3 --dist loadgroup $(PYTEST_ARGS)

# Tests of state machines and formats, and a few simulated seeds, without ZooKeeper, brokers and Spark.
quick: $(VENV)/.installed $(VENV)/.dependencies-check
	LOGBUS_TEST_INSTALLED=1 $(BIN)/pytest -n 2 -q -m "not real and not slow and not compat" \
	  tests/unit tests/bytes tests/transcripts tests/contract tests/sim/test_sim.py tests/test_*.py $(PYTEST_ARGS)

check: $(VENV)/.installed $(VENV)/.dependencies-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(MAKE) test

# Runs third-party clients from Debian, pip, mvn, npm and go, and writes tests/compat/RESULTS.md.
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

# Tests the source and the sink with the oldest PySpark, in a separate virtual environment. Takes 5 minutes.
compat-spark: java $(OLDEST_VENV)/.installed
	LOGBUS_TEST_INSTALLED=1 $(OLDEST_VENV)/bin/pytest -n 2 --dist loadgroup tests/connector tests/spark $(PYTEST_ARGS)

format: $(VENV)/.dependencies-check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.dependencies-docs: setup.cfg | $(VENV)/.dependencies-all
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[docs]"
	@touch $@

# Builds docs/_build/site. A broken link fails. Running the notebooks takes two minutes.
docs: java $(VENV)/.installed $(VENV)/.dependencies-docs
	PYTHONPATH=docs $(BIN)/python -P -m sitegen docs/_build/pages $(if $(PLAIN),,--notebooks)
	rm -rf docs/_build/site
	cd docs && ../$(BIN)/zensical build -f mkdocs.yml --strict --clean
	@echo "docs/_build/site/index.html"

$(VENV)/.dependencies-bench: setup.cfg | $(VENV)/.dependencies-all
	$(BIN)/python -m pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[bench]"
	@touch $@

# Compares logbus with Kafka and others, which Maven installs; writes benchmarks/RESULTS.md.
# Variables: ONLY=ROW, VARIANT=NAME, QUICK=1, INPUT=FILE.
bench: java $(VENV)/.installed $(VENV)/.dependencies-bench
	@$(call clients,mvn:maven javac:openjdk-17-jdk-headless rabbitmq-server:rabbitmq-server)
	PYTHONPATH=benchmarks $(BIN)/python -P -m peers $(ONLY) $(if $(VARIANT),--variant '$(VARIANT)') $(if $(QUICK),--quick) $(if $(INPUT),--input '$(INPUT)')

# Measures parts of logbus by themselves. Variable: ONLY=NAME.
figures: java $(VENV)/.installed $(VENV)/.dependencies-check
	$(BIN)/python -P benchmarks/all.py $(ONLY)

# Injects hundreds of faults under a workload and checks its history. Needs root to mount file systems.
chaos: java $(VENV)/.installed $(VENV)/.dependencies-check
	PYTHONPATH=tests $(BIN)/python -P -m faults.chaos $(if $(KILLS),--kills $(KILLS)) $(if $(CUTS),--cuts $(CUTS)) $(if $(PAUSES),--pauses $(PAUSES)) $(if $(FULL_DISKS),--full-disks $(FULL_DISKS)) $(if $(ISOLATIONS),--isolations $(ISOLATIONS)) $(if $(FLIPS),--flips $(FLIPS)) $(if $(SINK_KILLS),--sink-kills $(SINK_KILLS)) $(if $(LOOP_KILLS),--loop-kills $(LOOP_KILLS)) $(if $(SECURE),--secure)

# Simulates a cluster in virtual time, without processes and ports. Writes benchmarks/results/soak.json.
# TRANSACTIONS=1: every seed has transactions and a sink. Writes benchmarks/results/soak-transactions.json.
soak: $(VENV)/.installed $(VENV)/.dependencies-check
	PYTHONPATH=tests $(BIN)/python -P -m sim.soak $(if $(filter command line,$(origin SECONDS)),--seconds $(SECONDS)) $(if $(FIRST),--first $(FIRST)) $(if $(TRANSACTIONS),--transactions)

# Runs the four simulations of consumer groups. Writes benchmarks/results/soak-groups.json.
soak-groups: $(VENV)/.installed $(VENV)/.dependencies-check
	PYTHONPATH=tests $(BIN)/python -P -m sim.soak_groups $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST))

# Runs tests/spark/test_long.py for minutes. A failure prints its seed; set LOGBUS_STRESS_SEED to repeat it.
stress: java $(VENV)/.installed $(VENV)/.dependencies-check
	LOGBUS_TEST_INSTALLED=1 LOGBUS_STRESS_SECONDS=$(if $(filter command line,$(origin SECONDS)),$(SECONDS),600) \
	  $(BIN)/pytest tests/spark/test_long.py -k created_and_deleted $(PYTEST_ARGS)

# Fuzzes logins, access tokens, Envelopes, frames, certificate names, JAAS texts and access control lists, and plants faults.
# Writes benchmarks/results/fuzz.json, which has the wanted and the reached number of inputs.
fuzz: $(VENV)/.installed $(VENV)/.dependencies-check
	PYTHONPATH=tests $(BIN)/python -P -m fuzz.soak $(if $(filter command line,$(origin SECONDS)),--seconds $(SECONDS)) $(if $(FIRST),--first $(FIRST))
	LOGBUS_TEST_INSTALLED=1 LOGBUS_ACL_SETS=100000 $(BIN)/pytest tests/unit/security/test_authorizer.py
	LOGBUS_TEST_INSTALLED=1 $(BIN)/pytest -m planted tests/unit/security/test_planted_faults.py

# Rotates certificates, passwords and access control lists under load.
rotation: java $(VENV)/.installed $(VENV)/.dependencies-check
	LOGBUS_TEST_INSTALLED=1 LOGBUS_ROTATION_ROUNDS=$(or $(ROUNDS),20) $(BIN)/pytest tests/cluster/test_rotation.py $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) build dist docs/_build docs/.cache *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
