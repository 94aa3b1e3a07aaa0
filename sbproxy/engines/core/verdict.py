"""Why an engine process ended, decided from its exit status and the last of what it wrote.

Memory is looked for before the file, because llama.cpp ends both with the same sentence about loading.
The sentence for people names no absolute path of a model and holds no key. Once an engine was ready its output is
its clients' as much as its own, so that only the exit status counts then and nothing of the text is repeated.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from sbproxy.engines.core.model import ExitKind, ExitVerdict

MAX_DETAIL = 300
_KILLED = "killed by SIGKILL; when nobody did that, the kernel ran out of memory"

_PATTERNS: tuple[tuple[ExitKind, tuple[str, ...]], ...] = (
    (
        ExitKind.BAD_FLAG,
        (
            *("error: invalid argument", "error: unknown argument", "error while handling argument"),
            *("error: unexpected argument", "error: invalid value", "error: a value is required"),
            *(
                "error: unrecognized arguments",
                r"error: argument -\S+: ",
                "error: the following arguments are required",
            ),
            *("User-specified max_model_len", "is greater than the derived max_model_len"),
        ),
    ),
    (
        ExitKind.PORT,
        ("couldn't bind (HTTP )?server socket", "address already in use", "port is already allocated"),
    ),
    (
        ExitKind.OUT_OF_MEMORY,
        (
            *("std::bad_alloc", "(failed|unable) to allocate", "cannot allocate memory", "out of memory"),
            *(
                "cudaMalloc failed",
                "cudaErrorMemoryAllocation",
                "CUDA_ERROR_OUT_OF_MEMORY",
                "ErrorOutOf(Device|Host)Memory",
            ),
            *("alloc_tensor_range: failed", "insufficient memory", "mmap failed"),
            *("No available memory for the cache blocks", "KV cache is needed, which is larger than"),
            *(r"Free memory on device .* is less than desired", "Not enough memory\\. Please try"),
        ),
    ),
    (
        ExitKind.BAD_FILE,
        (
            *("corrupted or incomplete", "not within the file bounds", "invalid magic", "missing tensor"),
            *("failed to open GGUF", "failed to read (magic|header|key|tensor)", "invalid split file"),
            *("unknown model architecture", "unknown pre-tokenizer", "error loading model", "failed to load model"),
            *("MetadataIncompleteBuffer", "InvalidHeader", "HeaderTooLarge", "cannot find tensor"),
            *("SafetensorError", "HFValidationError", "Invalid repository ID or local directory"),
            *("does not appear to have a file named", "is not a valid JSON file", "Cannot find any model weights"),
            *(r"Model architectures .* (are not supported|failed to be inspected)", "Can't load the configuration of"),
        ),
    ),
)
_RULES = tuple((kind, re.compile("|".join(parts), re.IGNORECASE)) for kind, parts in _PATTERNS)
_TELLING = re.compile(r"error|fail|couldn't|cannot|terminate|abort|what\(\)|bad_alloc|corrupt", re.IGNORECASE)
_LOG_PREFIX = re.compile(
    r"^(\d+\.\d\d\.\d{3}\.\d{3} [A-Z] |(\([^)]{1,60}\) )?(INFO|WARNING|ERROR) \d\d-\d\d [\d:]{8} \[[^\]]{1,80}\] )"
)
"""Of llama.cpp, and of vLLM's several processes."""
_POINTER = re.compile(r"See (root cause|stack trace)|Traceback \(most recent|^raise |^File \"")
"""Lines that only point to the line that tells."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """What must not stand in a sentence for people: the model's path, our own run folder, the key."""

    model_path: Path
    run_dir: Path
    api_key: str

    def apply(self, text: str) -> str:
        clean = text.replace(self.api_key, "[key]") if self.api_key else text
        clean = clean.replace(str(self.model_path), self.model_path.name)
        for folder in (self.model_path.parent, self.run_dir):
            clean = clean.replace(f"{folder}/", "")
        return clean


def decide_verdict(
    returncode: int | None, tail: str, *, asked_to_stop: bool, was_ready: bool, redaction: Redaction
) -> ExitVerdict:
    """``returncode`` as Popen gives it (negative: signal number), ``tail`` the end of stdout and stderr together."""
    if asked_to_stop:
        return ExitVerdict(ExitKind.STOPPED, returncode, "stopped as asked")
    if was_ready:
        return _after_readiness(returncode)
    lines = [_LOG_PREFIX.sub("", line.strip()).strip() for line in tail.splitlines()]
    if returncode is not None and returncode < 0:
        return _by_signal(-returncode, returncode, lines, redaction)
    for kind, pattern in _RULES:
        line = next((each for each in lines if pattern.search(each)), None)
        if line is not None:
            return ExitVerdict(kind, returncode, _sentence(line, redaction))
    return ExitVerdict(ExitKind.CRASH, returncode, _last_words(f"exit status {returncode}", lines, redaction))


def _after_readiness(returncode: int | None) -> ExitVerdict:
    """Never a verdict that holds the generation: a prompt that the engine echoes can say whatever a rule looks for."""
    if returncode is None or returncode >= 0:
        return ExitVerdict(ExitKind.CRASH, returncode, f"exit status {returncode}; see its log")
    if returncode == -signal.SIGKILL:
        return ExitVerdict(ExitKind.SIGNAL, returncode, _KILLED)
    return ExitVerdict(ExitKind.SIGNAL, returncode, f"killed by {_signal_name(-returncode)}; see its log")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _by_signal(number: int, returncode: int, lines: list[str], redaction: Redaction) -> ExitVerdict:
    if (line := _find(ExitKind.OUT_OF_MEMORY, lines)) is not None:
        return ExitVerdict(ExitKind.OUT_OF_MEMORY, returncode, _sentence(line, redaction))
    if number == signal.SIGKILL:
        return ExitVerdict(ExitKind.SIGNAL, returncode, _KILLED)
    name = _signal_name(number)
    return ExitVerdict(ExitKind.SIGNAL, returncode, _last_words(f"killed by {name}", lines, redaction))


def _find(kind: ExitKind, lines: list[str]) -> str | None:
    pattern = next(pattern for each, pattern in _RULES if each is kind)
    return next((line for line in lines if pattern.search(line)), None)


def _last_words(what: str, lines: list[str], redaction: Redaction) -> str:
    telling = (each for each in reversed(lines) if _TELLING.search(each) and not _POINTER.search(each))
    line = next(telling, None)
    return what if line is None else _sentence(f"{what}: {line}", redaction)


def _sentence(text: str, redaction: Redaction) -> str:
    clean = "".join(char if char.isprintable() else " " for char in redaction.apply(text)).strip()
    return clean if len(clean) <= MAX_DETAIL else f"{clean[: MAX_DETAIL - 1]}…"
