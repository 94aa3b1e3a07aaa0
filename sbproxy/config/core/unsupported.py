"""Names that the documents define and this version does not have yet, by block. Whoever builds one removes its name."""

from __future__ import annotations

from typing import Final

TOP_LEVEL: Final = frozenset(
    [
        "access_log",
        "agent_classes",
        "rate_limits",
        "audit",
        "egress",
        "session_ledger",
        "request_events",
        "events",
        "flags",
        "update",
        "source",
    ]
)
"""Everything else that is unknown at the top only warns (contracts section 1)."""

BY_BLOCK: Final[dict[str, frozenset[str]]] = {
    "ProxyConfig": frozenset(
        [
            "http2_cleartext",
            "https_bind_port",
            "tls_cert_file",
            "tls_key_file",
            "acme",
            "http3",
            "metrics",
            "observability",
            "alerting",
            "secrets",
            "cluster",
            "config_authority",
            "l2_cache_settings",
            "l2_cache",
            "compression_state",
            "config_history",
            "response_cache_store",
            "trusted_proxies",
            "correlation_id",
            "tenants",
            "credentials",
            "ai_providers_file",
            "synthetic_probe",
            "messenger_settings",
            "device_parser_file",
        ]
    ),
    "InboundConfig": frozenset(["provider_hints", "native_key_policy"]),
    "KeyManagementConfig": frozenset(["oidc_claim_map"]),
    "StaticCredential": frozenset(["compression_profile"]),
    "AdminConfig": frozenset(["trace_url_template", "prompt_persistence_path", "prompt_persistence_encryption"]),
    "OperatorConfig": frozenset({"tenant"}),
    "OriginConfig": frozenset(
        [
            "tenant_id",
            "authentication",
            "auth",
            "policies",
            "force_ssl",
            "allowed_methods",
            "response_cache",
            "idempotency",
            "properties",
            "sessions",
            "user",
            "expose_openapi",
            "timeouts",
            "mirror",
            "cors",
            "hsts",
            "forward_rules",
        ]
    ),
    "AiProxyAction": frozenset(
        [
            "routing",
            "model_aliases",
            "model_groups",
            "context_window_fallbacks",
            "content_policy_fallbacks",
            "max_price_per_request",
            "guardrails",
            "budget",
            "model_rate_limits",
            "per_surface_rate_limits",
            "max_concurrent",
            "resilience",
            "compression",
            "reasoning",
            "semantic_cache",
            "cache_affinity",
            "shadow",
            "ai_policy",
            "data_posture",
            "prompts",
            "usage_sinks",
            "usage_parser",
            "allow_request_timeout_override",
            "max_request_timeout_ms",
            "capture_content",
        ]
    ),
    "ProviderConfig": frozenset(
        [
            "weight",
            "max_retries",
            "organization",
            "api_version",
            "host_override",
            "disable_forwarded_host_header",
            "no_prompt_training",
            "data_posture",
            "service_tier",
            "on_key_failure",
            "fallback_credential_id",
            "accept_native_credentials_for",
            "aws_sigv4",
            "bedrock_guardrail",
        ]
    ),
}

ACTIONS: Final = frozenset(["proxy", "static", "redirect", "mock", "load_balancer"])
"""Action types of the documents other than ``ai_proxy``."""

REMOVED: Final[dict[str, str]] = {
    "virtual_keys": "virtual_keys inside an action is not accepted; static keys belong under the origin's credentials",
}

_DEPLOYMENT = "write the model under proxy.model_host.deployments"
_PLANNED = "the memory plan decides it; remove it"

INSTEAD: Final[dict[str, dict[str, str]]] = {
    "ServeModelConfig": {
        "speculative": "speculative decoding does not survive in a serve block; remove it",
        "lora_adapters": "LoRA adapters do not survive in a serve block; merge them into a catalog v2 model",
        "max_loras": "LoRA adapters do not survive in a serve block; remove it",
        "chunked_prefill": f"it does not survive in a serve block; {_DEPLOYMENT}, which has chunked_prefill",
        "tensor_parallel": f"a served model has one device; {_DEPLOYMENT}, which has tensor_parallel",
        "tensor_parallel_size": f"a served model has one device; {_DEPLOYMENT}, which has tensor_parallel",
        "replicas": f"a served model has one replica; {_DEPLOYMENT}, which has replicas",
        "keep_alive_secs": "in a serve block it is keep_alive, a duration such as 30m",
        "max_model_len": "it is max_context",
        "max_seq_len": "it is max_context",
        "ctx_size": "it is max_context",
        "kv_cache_dtype": "it is kv_quant",
        "gpu_memory_utilization": _PLANNED,
        "max_num_seqs": _PLANNED,
        "gpu_layers": _PLANNED,
        "n_gpu_layers": _PLANNED,
        "quantization": "the variant of a catalog model says it; write variant",
        "dtype": "the variant of a catalog model says it; write variant",
        "revision": "a raw reference has no revision; pin the repository as a catalog v2 variant",
    },
    "EngineConfig": {
        "acquire": "it is not carried over; write path, or the version and sha256 that may be acquired",
    },
}
"""Keys of the compatibility form that have no place any more, by block: the reason and what to write in their place."""

NOT_YET: Final = "is not supported by this version"
