# make sweep   the quick ablation table, into runs/quick      make test   the tests
# PYTHON=python3.12 picks the interpreter that .venv is built with.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: sweep test install
sweep: install
	$(VENV)/bin/python -m launch.sweep --config=experiments/configs/quick.py --sweep=table,seed --workdir=runs/quick

test: install
	$(VENV)/bin/python -m pytest

install: $(INSTALLED)

$(INSTALLED): requirements.lock
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("attn needs Python 3.11 or newer; this is %d.%d. Name another: make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	touch $@
