# make sweep      the quick ablation table, into runs/quick
# make check      what to run on save: lint, imports, and the tests of modules marked quick, in less than a minute
# make types      the types, by pyright
# make test       the tests
# make wheel      a wheel of attn, into dist/: what a notebook on another machine installs
# make docs       the API reference of the docstrings, into build/docs
# make readme     trains README's table anew, and puts table and picture where they are shown
# make findings   makes the tables of experiments/results anew from the data beside them, and the page of claims
# make address    sets the public address everywhere: URL=https://github.com/OWNER/attn
# make notebooks  runs all notebooks, and stores them with what they show
# Each installs the lock file, and attn itself, into .venv first, where that is not done yet. EXTRAS=cuda12 or
# EXTRAS=cuda12,trackers adds to it, and is remembered; EXTRAS= forgets it. PYTHON=python3.12 picks the interpreter.
VENV ?= .venv
PYTHON ?= $(firstword $(wildcard $(VENV)/bin/python) python3)
EXTRAS ?= $(shell cat $(VENV)/extras 2>/dev/null)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
comma := ,
INSTALLED := $(VENV)/installed-$(VERSION)-$(subst $(comma),-,$(EXTRAS))
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check

.PHONY: sweep check types test wheel docs install lock colab notebooks readme findings address
sweep: install
	$(VENV)/bin/python -m launch.sweep --config=experiments/configs/quick.py --sweep=table,seed --workdir=runs/quick

check: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/python -m pytest -m 'quick and not ci' $$(grep -rl --include='test_*.py' mark.quick tests)

# pyproject.toml says what it asks of which package.
types: install
	$(PIP) install --quiet "pyright[nodejs]==1.1.414"
	$(VENV)/bin/pyright

test: install
	$(VENV)/bin/python -m pytest

# An API reference of attn and experiments, from their docstrings, into build/docs.
docs: install
	$(PIP) install --quiet pdoc==16.0.0
	$(VENV)/bin/python -m pdoc --docformat google --output-directory build/docs attn experiments '!experiments.configs'

wheel: install
	$(PIP) wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

install: $(INSTALLED)

# It installs over what is there, and removes nothing: the environment may hold packages of the user's own. The
# extras have the versions of the lock where it names them.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) .ci/check_install.py $(VENV) '$(EXTRAS)'
	test -e $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --require-hashes --requirement requirements.lock
	sed -e '/--hash=/d' -e 's/ \\$$//' requirements.lock > $(VENV)/constraints.txt
	$(PIP) install --quiet --no-build-isolation --constraint $(VENV)/constraints.txt --editable '.[test$(if $(EXTRAS),$(comma)$(EXTRAS))]'
	echo '$(EXTRAS)' > $(VENV)/extras
	rm -f $(VENV)/installed-*
	touch $@

# How requirements.lock is made: one file for every Python from 3.11 on, without the address of any registry.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --extra test --generate-hashes --no-annotate --no-header \
	  --output-file requirements.lock pyproject.toml

# What a Colab runtime has of the packages that attn needs, of a folder with Colab's own lists:
# make colab LISTS=FOLDER COMMIT="a7240792 of 2026-08-19"
colab:
	$(PYTHON) .ci/colab.py $(LISTS) '$(COMMIT)'

address:
	$(PYTHON) .ci/address.py $(URL)

# The notebooks, of their sources, with what they show.
notebooks: install
	$(VENV)/bin/python -m launch.notebooks.store

# README's table and picture, and the page of results behind them, from one run.
findings: install
	$(VENV)/bin/python .ci/results.py write

readme: install
	$(VENV)/bin/python .ci/readme.py
