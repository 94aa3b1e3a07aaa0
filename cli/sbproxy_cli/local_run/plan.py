"""Decides the configuration that `sbproxy run` writes, and the words of its banner (contracts section 11). Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

DEPLOYMENT = "local"
BIND = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
USERNAME = "admin"
FIRST_WORDS = "Complete the sentence: The capital of France is"
"""What the banner proposes to ask; also the starter model, which is tiny, answers it well."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that one run is made of. ``alias`` is the public model name; ``cache_dir`` None keeps the default."""

    model: str
    variant: str
    engine: str
    alias: str
    port: int
    admin_port: int
    password: str = field(repr=False)
    acceleration: str = "auto"
    cache_dir: str | None = None
    modality: str = "chat"

    @property
    def subject(self) -> str:
        return f"{self.model}:{self.variant}"

    @property
    def endpoint(self) -> str:
        return f"http://{BIND}:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://{BIND}:{self.admin_port}"

    def document(self) -> dict[str, Any]:
        """The whole sb.yml as plain values."""
        host: dict[str, Any] = {}
        if self.cache_dir is not None:
            host["cache"] = {"directory": self.cache_dir}
        host["engines"] = {self.engine: {"acceleration": self.acceleration}}
        host["deployments"] = {
            DEPLOYMENT: {
                "model": self.model,
                "variant": self.variant,
                "pull": "on_boot",
                "warm": True,
                "engine": self.engine,
            }
        }
        return {
            "proxy": {
                "bind_address": BIND,
                "http_bind_port": self.port,
                "admin": {
                    "enabled": True,
                    "port": self.admin_port,
                    "bind": BIND,
                    "username": USERNAME,
                    "password": self.password,
                },
                "model_host": host,
            },
            "origins": {host_name: self._origin() for host_name in HOSTS},
        }

    def probe(self) -> tuple[str, dict[str, Any]]:
        """The smallest request that only a working model can answer: path and body."""
        path, body = self._request("hello")
        return path, body if self.modality == "embedding" else {**body, "max_tokens": 1}

    def banner(self) -> list[str]:
        """What the user needs, in the order of section 11. Holds the password."""
        path, body = self._request(FIRST_WORDS)
        return [
            f"{self.alias} is ready on {self.endpoint}",
            f"Admin: {self.admin_url}",
            f"Admin username: {USERNAME}",
            f"Admin password: {self.password}",
            f"export OPENAI_BASE_URL={self.endpoint}/v1",
            "export OPENAI_API_KEY=local",
            f"Try: curl {self.endpoint}{path} -H 'content-type: application/json' -d {shell_quoted(json.dumps(body))}",
        ]

    def _request(self, text: str) -> tuple[str, dict[str, Any]]:
        if self.modality == "embedding":
            return "/v1/embeddings", {"model": self.alias, "input": text}
        return "/v1/chat/completions", {"model": self.alias, "messages": [{"role": "user", "content": text}]}

    def _origin(self) -> dict[str, Any]:
        provider = {
            "name": DEPLOYMENT,
            "provider_type": "managed_model",
            "deployment": DEPLOYMENT,
            "models": [self.alias],
            "default_model": self.alias,
        }
        return {"action": {"type": "ai_proxy", "providers": [provider]}}


def shell_quoted(text: str) -> str:
    """One shell word, always in single quotes."""
    return "'" + text.replace("'", "'\"'\"'") + "'"
