"""Follows the references at secret positions: environment variables and files. Reads each file once, bounded."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from sbproxy.config.core.secret_forms import FromEnvironment, FromFile, refusal, secret_form
from sbproxy.config.core.tree import Scalar

LARGEST_SECRET_FILE = 64 << 10


def resolve_secret(scalar: Scalar, missing: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """The secret itself. Raises ValueError with the reason; the reason never holds any part of the secret."""
    form = secret_form(scalar.written, scalar.text)
    if missing:
        raise ValueError(f"environment variable '{missing[0]}' is not set")
    if isinstance(form, FromEnvironment):
        if form.name not in environ:
            raise ValueError(f"environment variable '{form.name}' is not set")
        value = environ[form.name]
    elif isinstance(form, FromFile):
        value = _read(form.path)
    else:
        value = scalar.text
    reason = refusal(value)
    if reason is not None:
        raise ValueError(reason)
    return value


def _read(path: str) -> str:
    """The text of a secret file without its trailing newline."""
    try:
        # Non-blocking, so that a pipe without a writer cannot hold up a start or a reload.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError(f"{path} is not a regular file")
            data = file.read(LARGEST_SECRET_FILE + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_SECRET_FILE:
        raise ValueError(f"{path} is larger than {LARGEST_SECRET_FILE >> 10} KiB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")
