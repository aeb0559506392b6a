# demo   run notebooks/quickstart.ipynb on this machine's GPUs (or pretend ones); show its jobs
# lab    JupyterLab with that notebook
# test   all tests that this machine can run; ARGS="-k units -x" are pytest's, "-n 3" has three at a time
# screenshots  pictures of the panel for docs, anew
# check  ruff, mypy, import-linter and, for the JavaScript, tsc
#
# Each needs nothing before it but Python 3.11 or newer, and sets up $(VENV) by itself.

VENV ?= .venv
PYTHON ?= python3
TORCH = torch==2.13.0
TYPESCRIPT = typescript@5.9.3
PYTEST = -m pytest
ARGS ?=

MAKEFLAGS += --no-print-directory
.PHONY: demo lab test screenshots check .setup

demo: .setup
	@"$(VENV)/bin/python" scripts/demo.py

lab: .setup
	@"$(VENV)/bin/python" scripts/demo.py lab $(ARGS)

test: .setup
	@"$(VENV)/bin/python" $(PYTEST) $(ARGS)

screenshots: .setup
	@"$(VENV)/bin/python" scripts/screenshots.py $(ARGS)

check: .setup
	"$(VENV)/bin/ruff" check
	"$(VENV)/bin/ruff" format --check
	"$(VENV)/bin/mypy"
	"$(VENV)/bin/lint-imports"
	@VENV="$(VENV)" TYPESCRIPT="$(TYPESCRIPT)" sh scripts/check_javascript.sh

# The environment is made anew in place when what is installed by it has changed: the stamp holds
# the checksum of those files. (A target with a file name would not bear a path with spaces.)
.setup:
	@VENV="$(VENV)" PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh scripts/setup.sh
