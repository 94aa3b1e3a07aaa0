"""Start, reload and `validate` refuse the same configuration with the same words, before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import fake_engine
from support.cli import sbproxy
from support.daemon import FAKE_ENGINE_CONFIG, daemon, tiny_catalog

pytestmark = pytest.mark.e2e


def test_an_unsafe_argument_is_refused_at_start_at_reload_and_by_validate(tmp_path: Path) -> None:
    tiny_catalog(tmp_path)
    fake_engine.install(tmp_path)
    with daemon(tmp_path, FAKE_ENGINE_CONFIG) as handle:
        good = handle.config.read_text()
        bad = good.replace("model: tiny-model", "model: tiny-model, extra_args: [--model, x, --port, '1']")
        assert bad != good
        handle.start()
        handle.config.write_text(bad)
        told = sbproxy("validate", str(handle.config))
        assert told.code == 2
        words = [line[line.index("proxy.model_host") :] for line in told.err.splitlines()]
        assert [word.rpartition("extra_args")[2] for word in words] == [
            "[0]: '--model' is not allowed: the model belongs to the model host",
            "[2]: '--port' is not allowed: the address and the network belongs to the model host",
        ]
        answer = handle.ask("POST", "/admin/reload", admin=True)
        assert answer.status == 400
        assert all(word in answer.body.decode() for word in words), answer.body
        assert handle.ask("GET", "/readyz", admin=True).status == 200
        assert handle.stop() == 0
        (tmp_path / "daemon.log").unlink()
        handle.start(wait=False)
        assert handle.process is not None
        assert handle.process.wait(30) == 1
        assert all(word in handle.log for word in words)
