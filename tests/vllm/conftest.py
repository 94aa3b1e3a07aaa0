"""Real vLLM is 4 GB of packages and minutes of waiting: these tests run only for ``make test-vllm``."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "SBPROXY_VLLM" in os.environ else ["test_*.py"]
