"""Why an engine ended. The lines are what llama-server b10434 wrote when it was provoked."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sbproxy.engines.core.model import ExitKind, ExitVerdict
from sbproxy.engines.core.verdict import MAX_DETAIL, Redaction, decide_verdict

REDACTION = Redaction(Path("/srv/models/secret-customer/a.gguf"), Path("/srv/run/d-g1"), "the-key")
LOADING = "0.00.008.859 E srv  llama_server: exiting due to model loading error"


def verdict(returncode: int | None, *lines: str, asked: bool = False, ready: bool = False) -> ExitVerdict:
    tail = "\n".join(lines)
    return decide_verdict(returncode, tail, asked_to_stop=asked, was_ready=ready, redaction=REDACTION)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "0.00 E load: tensor 'blk.1' data is not within the file bounds, model is corrupted or incomplete",
            "bad_file",
        ),
        (
            "gguf_init_from_file: failed to open GGUF file '/srv/models/secret-customer/a.gguf' (No such file)",
            "bad_file",
        ),
        ("gguf_init_from_file_impl: invalid magic characters: 'oops', expected 'GGUF'", "bad_file"),
        ("error loading model: unknown model architecture: 'novel'", "bad_file"),
        ("error: invalid argument: --bogus", "bad_flag"),
        ('error while handling argument "--threads": stoi', "bad_flag"),
        ("srv    start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 80", "port"),
        ("llama_init_from_model: failed to initialize the context: std::bad_alloc", "out_of_memory"),
        ("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99", "out_of_memory"),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory", "out_of_memory"),
        ("ggml_vulkan: Device memory allocation failed: ErrorOutOfDeviceMemory", "out_of_memory"),
        ("mmap failed: Cannot allocate memory", "out_of_memory"),
        ("something else went wrong", "crash"),
    ],
)
def test_before_readiness(line: str, kind: str) -> None:
    assert (
        verdict(1, "0.00.001.000 I srv: hello", line, LOADING if kind in ("bad_file", "out_of_memory") else "").kind
        == kind
    )


def test_memory_wins_over_the_loading_error_that_it_causes() -> None:
    assert verdict(1, "E error loading model: unable to allocate CPU buffer", LOADING).kind is ExitKind.OUT_OF_MEMORY


def test_asked_to_stop_is_stopped_however_it_ended() -> None:
    assert verdict(0, asked=True) == ExitVerdict(ExitKind.STOPPED, 0, "stopped as asked")
    assert verdict(-9, LOADING, asked=True).kind is ExitKind.STOPPED


def test_signals() -> None:
    killed = verdict(-signal.SIGKILL, ready=True)
    assert killed.kind is ExitKind.SIGNAL
    assert "SIGKILL" in killed.detail
    assert "memory" in killed.detail
    assert "SIGSEGV" in verdict(-signal.SIGSEGV).detail
    aborted = verdict(-signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'")
    assert aborted.kind is ExitKind.OUT_OF_MEMORY
    assert verdict(-77).kind is ExitKind.SIGNAL


def test_a_ready_engine_that_ends_by_itself_crashed_whatever_its_prompts_said() -> None:
    assert verdict(1, "user text: failed to load model", ready=True).kind is ExitKind.CRASH
    assert verdict(0, ready=True).kind is ExitKind.CRASH


@pytest.mark.parametrize("returncode", [1, 0, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGKILL, -77])
@pytest.mark.parametrize(
    "line",
    [
        "std::bad_alloc out of memory MARK",
        "CUDA error: out of memory MARK",
        "\nggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 1 MARK",
        "0.00.001.000 E error: invalid argument: MARK",
        "error loading model: MARK is corrupted or incomplete",
        "couldn't bind HTTP server socket MARK",
    ],
)
def test_no_text_of_a_client_holds_or_names_anything_once_the_engine_was_ready(returncode: int, line: str) -> None:
    decided = verdict(returncode, "srv  log_server_r: request: {", line, ready=True)
    assert decided.kind in (ExitKind.CRASH, ExitKind.SIGNAL)
    assert decided.worth_retry
    assert "MARK" not in decided.detail


def test_worth_a_retry() -> None:
    assert verdict(-9).worth_retry
    assert not verdict(1, "error: invalid argument: --x").worth_retry
    assert not verdict(1, "model is corrupted or incomplete").worth_retry


def test_detail_names_no_path_and_no_key() -> None:
    detail = verdict(
        1, "failed to load model '/srv/models/secret-customer/a.gguf' with the-key of /srv/run/d-g1/key"
    ).detail
    assert detail == "failed to load model 'a.gguf' with [key] of key"


def test_detail_is_one_bounded_printable_line() -> None:
    detail = verdict(1, "error loading model: \x1b[31m" + "x" * 1000).detail
    assert len(detail) == MAX_DETAIL
    assert detail.isprintable()


def test_the_log_prefix_is_dropped() -> None:
    assert verdict(1, "0.00.034.887 E llama_model_load: error loading model: bad").detail.startswith(
        "llama_model_load:"
    )
