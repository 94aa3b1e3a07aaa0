"""What can go wrong on the data plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbproxy.errors.tree import SbproxyError


class GatewayError(SbproxyError):
    """Branch: the data plane."""


class UpstreamError(GatewayError):
    """Branch: the connection to an engine or provider."""


@dataclass(eq=False)
class UpstreamUnreachable(UpstreamError):
    """No connection could be made."""

    code: ClassVar[str] = "upstream_unreachable"
    retryable: ClassVar[bool] = True
    upstream: str
    reason: str

    def text(self) -> str:
        return f"{self.upstream} cannot be reached: {self.reason}"


@dataclass(eq=False)
class UpstreamTimeout(UpstreamError):
    """The head or the body did not come in time (seconds)."""

    code: ClassVar[str] = "upstream_timeout"
    retryable: ClassVar[bool] = True
    upstream: str
    timeout_s: float

    def text(self) -> str:
        return f"{self.upstream} did not answer within {self.timeout_s:g} s"


@dataclass(eq=False)
class UpstreamBroken(UpstreamError):
    """The connection ended in the middle of an answer, or the answer is not HTTP."""

    code: ClassVar[str] = "upstream_broken"
    retryable: ClassVar[bool] = True
    upstream: str
    reason: str

    def text(self) -> str:
        return f"the answer of {self.upstream} broke off: {self.reason}"


@dataclass(eq=False)
class UpstreamTooLarge(UpstreamError):
    """A unary answer above the limit in bytes."""

    code: ClassVar[str] = "upstream_too_large"
    upstream: str
    limit_bytes: int

    def text(self) -> str:
        return f"the answer of {self.upstream} is larger than {self.limit_bytes} bytes"


class RequestRefused(GatewayError):
    """Branch: the caller's request is at fault. The text goes to the caller as it is."""


@dataclass(eq=False)
class InvalidRequest(RequestRefused):
    """The body breaks a rule of the API. ``param`` is the OpenAI path of the field, or None for the whole body."""

    code: ClassVar[str] = "invalid_request"
    reason: str
    param: str | None = None

    def text(self) -> str:
        return f"{self.param}: {self.reason}" if self.param else self.reason


@dataclass(eq=False)
class RemoteContentRefused(RequestRefused):
    """A content part names a URL that an engine of ours would have to fetch."""

    code: ClassVar[str] = "remote_content_refused"
    param: str

    def text(self) -> str:
        return f"{self.param}: a managed model fetches nothing from the network; send the content inline instead"


@dataclass(eq=False)
class BodyTooLarge(RequestRefused):
    """The body is above the origin's ``max_body_size``."""

    code: ClassVar[str] = "body_too_large"
    limit_bytes: int

    def text(self) -> str:
        return f"the request body is larger than the {self.limit_bytes} bytes that this origin takes"


@dataclass(eq=False)
class MultipartRefused(RequestRefused):
    """A multipart body on a JSON surface (contracts section 50)."""

    code: ClassVar[str] = "multipart_refused"
    surface: str

    def text(self) -> str:
        return f"{self.surface} takes a JSON body, not a multipart one"


@dataclass(eq=False)
class EncodedBody(RequestRefused):
    """A compressed request body."""

    code: ClassVar[str] = "unsupported_content_encoding"
    surface: str

    def text(self) -> str:
        return f"{self.surface} takes an uncompressed body; send it without Content-Encoding"


@dataclass(eq=False)
class UnsupportedMediaType(RequestRefused):
    """A Content-Type that is not JSON."""

    code: ClassVar[str] = "unsupported_media_type"
    surface: str

    def text(self) -> str:
        return f"{self.surface} takes a JSON body; send it with Content-Type: application/json"


@dataclass(eq=False)
class UnknownHost(RequestRefused):
    """No origin is configured for the request's host."""

    code: ClassVar[str] = "unknown_host"
    host: str

    def text(self) -> str:
        named = f"host {self.host!r}" if self.host else "a request without a Host header"
        return f"no origin of this gateway answers for {named}"


@dataclass(eq=False)
class UnknownPath(RequestRefused):
    """No surface lives at that path."""

    code: ClassVar[str] = "unknown_url"
    method: str
    path: str

    def text(self) -> str:
        return f"unknown request URL: {self.method} {self.path}; see GET /v1/models for what is served"


@dataclass(eq=False)
class MethodNotAllowed(RequestRefused):
    """The path is known, the method is not one of ``allow``."""

    code: ClassVar[str] = "method_not_allowed"
    method: str
    path: str
    allow: tuple[str, ...]

    def text(self) -> str:
        return f"{self.path} takes {', '.join(self.allow)}, not {self.method}"


@dataclass(eq=False)
class SurfaceNotServed(RequestRefused):
    """A known part of the API that this gateway does not serve (contracts section 30)."""

    code: ClassVar[str] = "surface_not_served"
    surface: str

    def text(self) -> str:
        return f"this gateway does not serve {self.surface}; chat completions, completions and embeddings it does"


@dataclass(eq=False)
class ModelNotFound(RequestRefused):
    """The origin offers no such model. ``near`` holds the closest names that it does offer."""

    code: ClassVar[str] = "model_not_found"
    model: str
    near: tuple[str, ...] = ()

    def text(self) -> str:
        hint = f"; did you mean {', '.join(self.near)}?" if self.near else "; GET /v1/models lists what there is"
        return f"the model {self.model!r} does not exist here{hint}"


@dataclass(eq=False)
class UnsupportedByModel(RequestRefused):
    """The model exists but cannot do this: embeddings of a chat model, say."""

    code: ClassVar[str] = "unsupported_surface"
    model: str
    surface: str

    def text(self) -> str:
        return f"the model {self.model!r} does not support {self.surface}"


@dataclass(eq=False)
class UnsupportedContent(RequestRefused):
    """The model does not take this kind of input. ``param`` is the OpenAI path of it, where it is known."""

    code: ClassVar[str] = "unsupported_content"
    model: str
    kind: str
    param: str | None = None

    def text(self) -> str:
        return f"the model {self.model!r} does not take {self.kind} input"


@dataclass(eq=False)
class ContextLengthExceeded(RequestRefused):
    """The prompt is longer than the model's context. Both figures in tokens."""

    code: ClassVar[str] = "context_length_exceeded"
    model: str
    prompt_tokens: int
    context_tokens: int

    def text(self) -> str:
        return (
            f"the prompt has {self.prompt_tokens} tokens but {self.model!r} runs with a context of"
            f" {self.context_tokens}; shorten the prompt"
        )


@dataclass(eq=False)
class EngineRefused(RequestRefused):
    """The engine found the request invalid. Its own words may quote the prompt or the parser, so they stay here."""

    code: ClassVar[str] = "engine_refused_request"
    model: str
    status: int

    def text(self) -> str:
        return f"the model {self.model!r} does not accept this request; check its parameters, messages and tools"


@dataclass(eq=False)
class EngineFault(GatewayError):
    """A managed engine answered with a failure of its own. ``kind`` is its word for it, never its sentence."""

    code: ClassVar[str] = "engine_error"
    retryable: ClassVar[bool] = True
    model: str
    status: int
    kind: str = ""

    def text(self) -> str:
        tail = f" ({self.kind})" if self.kind else ""
        return f"the engine of {self.model!r} failed with HTTP {self.status}{tail}"


@dataclass(eq=False)
class ProviderRefused(GatewayError):
    """A hosted provider's error answer, made for callers, in OpenAI form; every text in it is bounded."""

    code: ClassVar[str] = "provider_refused"
    provider: str
    status: int
    message: str
    kind: str
    param: str | None = None
    provider_code: str | None = None
    retry_after: str | None = None

    def text(self) -> str:
        return self.message


@dataclass(eq=False)
class ProviderFault(GatewayError):
    """A hosted provider answered with something that is not its API."""

    code: ClassVar[str] = "provider_error"
    retryable: ClassVar[bool] = True
    provider: str
    status: int
    reason: str

    def text(self) -> str:
        return f"provider {self.provider} answered HTTP {self.status}: {self.reason}"


@dataclass(eq=False)
class UnusableProvider(GatewayError):
    """A provider of the configuration that no route can be made of; raised when routes are compiled."""

    code: ClassVar[str] = "unusable_provider"
    origin: str
    provider: str
    reason: str

    def text(self) -> str:
        return f"origins.{self.origin}: provider {self.provider}: {self.reason}"
