# Two commands matter: `make run` watches this machine, `make test` runs the tests. `make help` lists the others.
# Both set up a virtual environment in .venv by themselves, again only when pyproject.toml changes.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
DAEMONS ?= 1
JOBS ?= 3

.PHONY: help run demo test install uninstall deb rpm sbom daemons bench load lint soak docs demo-slurm clean
.DEFAULT_GOAL := run

help: ## this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { gsub(" ", "|", $$1); printf "make %-18s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.run ## watch this machine: decisions, a dashboard and an API
	@exec $(BIN)/pronto up $(ARGS)

demo: $(VENV)/.run ## two minutes of real jobs on two nodes out of this machine, sent with and without Pronto
	@exec $(BIN)/python -m examples.demo $(ARGS)

# Installs the programs that tests start, where it may; DAEMONS=0 runs what can run without. Three files at a time, also on
# two cores, since many tests wait for something to happen; JOBS sets another number.
test: $(VENV)/.dev ## the tests; as root on Debian it first installs the daemons that they start (DAEMONS=0: not)
	@[ "$(DAEMONS)" = 0 ] || sh .ci/daemons || true
	@$(BIN)/python -m pytest -m "not soak" -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# deploy/install.sh says what can be set.
install uninstall: ## into /opt/pronto, with the command in /usr/local/bin and a systemd unit; and out again
	@sh deploy/install.sh $@

deb: ## a Debian package in dist/, for the release of Debian that this runs on
	@sh deploy/debian.sh

rpm: ## an RPM in dist/, for the distribution that this runs on; PYTHON names another interpreter
	@PYTHON="$(PYTHON)" sh deploy/rpm.sh

sbom: ## what an installation is made of, with versions and licences, as CycloneDX in dist/
	@sh deploy/sbom.sh

daemons: ## install the programs that tests start
	@sh .ci/daemons

# ARGS: core (the default), study, embeddings, agent, federation, worth, traffic or all; --help has more.
bench: $(VENV)/.dev ## speed and size on this machine
	@exec $(BIN)/python -m benchmarks $(or $(ARGS),core)

load: $(VENV)/.run ## a real, bounded load on this machine: make load ARGS="--for 5m --share 0.3 --seed 7"
	@exec $(BIN)/python -m tools.load $(ARGS)

lint: $(VENV)/.dev ## ruff and mypy --strict
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

soak: $(VENV)/.dev ## the long tests
	@PRONTO_TEST_FUZZ_SECONDS=$${PRONTO_TEST_FUZZ_SECONDS:-200} $(BIN)/python -m pytest -m "soak or fuzz" --timeout 3600 $(ARGS)

docs: $(VENV)/.dev ## the generated pages, then all of docs/ as a site that needs no network
	@$(BIN)/python -m tests.make_cli_docs
	@$(BIN)/python -m tests.make_api_docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

demo-slurm: $(VENV)/.dev ## a private Slurm cluster on this machine, with and without Pronto
	@exec $(BIN)/python -m examples.demo_slurm $(ARGS)

clean: ## remove .venv and what was built
	rm -rf $(VENV) dist build site

define packages
$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(1)]' || { \
	echo "Pronto needs the packages named in pyproject.toml, and pip could not install them (above): it needs a network," \
	"or a folder of wheels: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER make" >&2; exit 1; }
endef

$(VENV)/.python: .ci/find-python
	@sh .ci/find-python $(VENV)

$(VENV)/.run: $(VENV)/.python pyproject.toml
	@echo "setting up $(VENV) (once; again only when pyproject.toml changes)" >&2
	@$(call packages,agent)
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml
	@echo "setting up $(VENV) with the development tools (once; again only when pyproject.toml changes)" >&2
	@$(call packages,dev)
	@touch $@ $(VENV)/.run
