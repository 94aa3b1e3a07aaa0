"""The tree names only hosts that the product itself is about, and no path of the machine it was written on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = re.compile(
    r"(localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[?::1\]?|10\.\d+\.\d+\.\d+|192\.168\.\d+\.\d+|169\.254\.169\.254"
    r"|([a-z0-9-]+\.)*(example|test|invalid|internal)(\.(com|org|net))?|huggingface\.co|github\.com|api\.openai\.com|api\.[a-z]+\.(com|ai)"
    r"|openrouter\.ai|json-schema\.org|www\.apache\.org|www\.w3\.org|opensource\.org|platform\.openai\.com|[a-z]+\.svg)"
)
URL = re.compile(rb"https?://(\[[0-9a-f:]+\]|[A-Za-z0-9.-]+\.?[A-Za-z0-9-]+)")


def committed() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, timeout=60
    ).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def test_every_host_in_a_url_belongs_to_the_product() -> None:
    strangers = {
        (str(path.relative_to(ROOT)), host.decode())
        for path in committed()
        if path.suffix != ".svg"
        for host in URL.findall(path.read_bytes())
        if "." in host.decode() and not ALLOWED.fullmatch(host.decode().lower())
    }
    assert strangers == set()


def test_no_path_of_this_checkout() -> None:
    here = str(ROOT).encode()
    assert [str(path) for path in committed() if here in path.read_bytes()] == []
