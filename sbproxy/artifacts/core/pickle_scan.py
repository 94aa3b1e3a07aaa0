"""Decides whether a pickle only rebuilds tensors: every global that it names must be on the list below.

The opcodes are read, never carried out. What cannot be read, or builds a name at run time, is refused. How files
and archives are opened is the business of ``artifacts.pickle_files``.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import IO, Final, Protocol, cast

MAX_OPCODES: Final = 4_000_000
"""The pickle of a checkpoint with a hundred thousand tensors stays below."""
LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C
"""First value of a checkpoint in PyTorch's older format: five pickles, and then raw bytes that no loader unpickles."""
LEGACY_PICKLES: Final = 5

_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool", "ComplexFloat",
             "ComplexDouble", "QUInt8", "QInt8", "QInt32")  # fmt: skip
_TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
          "complex128", "float8_e4m3fn", "float8_e5m2", "Size", "Tensor", "device")  # fmt: skip
_REBUILDERS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_meta_tensor_no_storage")
_NUMPY_ARRAYS = ("numpy.core.multiarray", "numpy._core.multiarray")
_BUILTINS = ("set", "frozenset", "bytearray", "complex")

ALLOWED: Final = frozenset(
    [
        "collections OrderedDict",
        "_codecs encode",
        "torch.nn.parameter Parameter",
        "torch.storage UntypedStorage",
        *(f"torch {name}Storage" for name in _STORAGES),
        *(f"torch.cuda {name}Storage" for name in _STORAGES),
        *(f"torch {name}" for name in _TYPES),
        *(f"torch._utils {name}" for name in _REBUILDERS),
        "numpy ndarray",
        "numpy dtype",
        *(f"{module} {name}" for module in _NUMPY_ARRAYS for name in ("_reconstruct", "scalar")),
        *(f"{module} {name}" for module in ("builtins", "__builtin__") for name in _BUILTINS),
    ]
)
"""``module name``. None of them runs code of the pickle, loads another pickle or touches the system."""

_TEXTS = frozenset(
    {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"}
)
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_REGISTERED = frozenset({"EXT1", "EXT2", "EXT4"})
_FOREIGN = frozenset({"NEXT_BUFFER", "READONLY_BUFFER"})


class Reader(Protocol):
    """What ``pickletools`` reads from."""

    def read(self, size: int = ..., /) -> bytes: ...

    def readline(self) -> bytes: ...


class UnsafePickle(ValueError):
    """``named`` is the global that is not allowed, if one was named."""

    def __init__(self, reason: str, named: str | None = None) -> None:
        super().__init__(reason)
        self.named = named


@dataclass(slots=True)
class _Names:
    """Follows just enough of the stack to know what STACK_GLOBAL names: texts that were pushed last, and the memo."""

    pushed: list[str | None] = field(default_factory=list)
    memo: dict[int, str | None] = field(default_factory=dict)

    def step(self, opcode: str, argument: object) -> None:
        if opcode in _TEXTS:
            self._push(argument if isinstance(argument, str) else None)
        elif opcode in _GETS:
            self._push(self.memo.get(_index(argument)))
        elif opcode in _PUTS:
            self.memo[_index(argument)] = self._top
        elif opcode == "MEMOIZE":
            self.memo[len(self.memo)] = self._top
        elif opcode != "FRAME":
            self.pushed.clear()

    def named(self) -> str:
        """Raises UnsafePickle unless the two values below were plain texts."""
        module, name = (self.pushed or [None])[-2:-1], self._top
        if not module or module[0] is None or name is None:
            raise UnsafePickle("builds the name of a global at run time")
        return f"{module[0]} {name}"

    @property
    def _top(self) -> str | None:
        return self.pushed[-1] if self.pushed else None

    def _push(self, text: str | None) -> None:
        self.pushed = [*self.pushed[-1:], text]


def check_pickle(reader: Reader) -> object:
    """Read one pickle to its end. Returns the only value that it pushed, if it is as simple as that, else ``None``.

    Raises UnsafePickle.
    """
    names, count = _Names(), 0
    values: list[object] = []
    try:
        for opcode, argument, _position in pickletools.genops(cast("IO[bytes]", reader)):
            count += 1
            if count > MAX_OPCODES:
                raise UnsafePickle(f"has more than {MAX_OPCODES} opcodes")
            _check_opcode(opcode.name, argument, names)
            names.step(opcode.name, argument)
            if len(values) < 2 and opcode.name not in ("PROTO", "FRAME", "STOP"):
                values.append(argument)
    except UnsafePickle:
        raise
    # pickletools says ValueError of most damage, and what its readers stumble over of the rest.
    except (ValueError, EOFError, IndexError, KeyError, OverflowError, MemoryError, AttributeError) as error:
        raise UnsafePickle(f"cannot be read as a pickle ({str(error)[:80] or type(error).__name__})") from None
    return values[0] if len(values) == 1 else None


def _check_opcode(opcode: str, argument: object, names: _Names) -> None:
    if opcode in ("GLOBAL", "INST"):
        _require_allowed(str(argument))
    elif opcode == "STACK_GLOBAL":
        _require_allowed(names.named())
    elif opcode in _REGISTERED:
        raise UnsafePickle("names a global by a registered number")
    elif opcode in _FOREIGN:
        raise UnsafePickle("takes buffers from outside")


def _require_allowed(named: str) -> None:
    if named not in ALLOWED:
        dotted = "".join(char if char.isprintable() else "?" for char in named.replace(" ", ".", 1))[:120]
        raise UnsafePickle(f"names the global {dotted}, which is not needed to rebuild tensors", dotted)


def _index(argument: object) -> int:
    return int(argument) if isinstance(argument, int | str) else -1
