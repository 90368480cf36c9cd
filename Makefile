# make sweep   the quick ablation table, into runs/quick
# make test    the tests
# make wheel   a wheel of attn, into dist/: what a notebook on another machine installs
# Each makes .venv from the lock file first, where that is not done yet. PYTHON=python3.12 picks the interpreter.
PYTHON ?= python3
VENV ?= .venv
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
INSTALLED := $(VENV)/installed-$(VERSION)

.PHONY: sweep test wheel install lock notebooks
sweep: install
	$(VENV)/bin/python -m launch.sweep --config=experiments/configs/quick.py --sweep=table,seed --workdir=runs/quick

test: install
	$(VENV)/bin/python -m pytest

wheel: install
	$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

install: $(INSTALLED)

# The stamp bears the version, so that another PYTHON builds another environment.
$(INSTALLED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("attn needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name one with make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	touch $@

# How requirements.lock is made: one file for every Python from 3.11 on, without the address of any registry.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --extra test --generate-hashes --no-annotate --no-header \
	  --output-file requirements.lock pyproject.toml

# The notebooks, of their sources.
notebooks: install
	$(VENV)/bin/jupytext --quiet --update --to ipynb launch/notebooks/attention_by_hand.py launch/notebooks/ablation.py launch/notebooks/own_text.py
