.PHONY: run test test-vllm check bench

run:            ## install what is missing, then serve the starter model on this machine
	@scripts/bootstrap
	@.venv/bin/sbproxy run smollm2-135m-instruct

test:           ## everything CI runs
	@scripts/bootstrap --dev
	@scripts/test

test-vllm:      ## the vLLM driver against real vLLM on the CPU; installs 4 GB under .build the first time
	@scripts/bootstrap --dev
	@scripts/test-vllm

check:          ## the fast gates: format, lint, types, import contracts, unit tests
	@scripts/bootstrap --dev
	@scripts/test --fast

bench:          ## measurements; prints tables, asserts nothing
	@scripts/bootstrap --dev
	@.venv/bin/python benchmarks/admission.py
	@.venv/bin/python benchmarks/deployment_map.py
	@.venv/bin/python benchmarks/gateway.py
