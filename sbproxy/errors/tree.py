"""The root of the one error tree.

A leaf carries a stable ``code``, a ``retryable`` flag and typed fields; its text is built from the fields.
What a leaf means to a caller (HTTP status, exit code, sentence) stands in total tables beside each surface.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class SbproxyError(Exception):
    """Any failure that this program foresees. Leaves are dataclasses; they override :meth:`text`."""

    code: ClassVar[str] = ""
    retryable: ClassVar[bool] = False

    def text(self) -> str:
        """One sentence that names the thing, the reason and the next step, built from the fields."""
        raise NotImplementedError(type(self).__name__)

    def __str__(self) -> str:
        return self.text()


def leaves(root: type[SbproxyError] = SbproxyError) -> Iterator[type[SbproxyError]]:
    """Every class of the tree that nothing derives from, in definition order."""
    children = root.__subclasses__()
    if not children and root is not SbproxyError:
        yield root
    for child in children:
        yield from leaves(child)
