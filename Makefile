# make quickstart   train a rewriter offline, on the tiny world (minutes on 2 CPU cores)
# make test         run the tests
# Both make .venv and install into it first, once; after that neither needs a network.
PYTHON ?= python3
READY := .venv/.ready

.PHONY: quickstart test lint clean

quickstart: $(READY)
	.venv/bin/accelerate launch --quiet train/dpo.py --config configs/quickstart.yaml

test: $(READY)
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

clean:
	rm -rf .venv runs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=...")'
	@test -x .venv/bin/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing into .venv (once; some minutes)"
	.venv/bin/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $(READY)
