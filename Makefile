.PHONY: run test check bench

run:            ## install what is missing, then serve the starter model on this machine
	@scripts/bootstrap
	@.venv/bin/sbproxy run smollm2-135m-instruct

test:           ## everything CI runs
	@scripts/bootstrap --dev
	@scripts/test

check:          ## the fast gates: format, lint, types, import contracts, unit tests
	@scripts/bootstrap --dev
	@scripts/test --fast

bench:          ## measurements; prints tables, asserts nothing
	@scripts/bootstrap --dev
	@.venv/bin/python benchmarks/gateway.py
