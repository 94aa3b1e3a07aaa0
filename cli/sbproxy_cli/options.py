"""Option types that several nouns share, so that a flag reads the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    text = "text"
    json = "json"


class EngineName(StrEnum):
    """Both spellings of contracts section 0, row 12."""

    auto = "auto"
    llama_cpp = "llama_cpp"
    llama_cpp_kebab = "llama-cpp"
    vllm = "vllm"
    sglang = "sglang"
    mistralrs = "mistralrs"

    @property
    def engine(self) -> str:
        """The name that configuration and catalog use."""
        return self.value.replace("-", "_")


FormatOption = Annotated[
    Format, typer.Option("--format", help="What stdout carries: text for people, or one JSON object.")
]
CatalogFileOption = Annotated[
    Path | None, typer.Option("--catalog-file", help="A catalog v2 document instead of the built-in one.")
]
CacheDirOption = Annotated[
    Path | None, typer.Option("--cache-dir", help="Where verified models live; wins over the configuration's place.")
]
VariantOption = Annotated[str | None, typer.Option("--variant", help="One exact variant of the model.")]
EngineOption = Annotated[EngineName, typer.Option("--engine", help="The engine that is to run the model.")]
NoFetchOption = Annotated[
    bool, typer.Option("--no-fetch", help="Read nothing from the network, which holds without it too.")
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return as soon as the daemon has taken the job.")]


def refuse_secret_on_argv(value: str | None) -> None:
    """A command line is readable by every user of the machine, so a password there is refused, not used."""
    if value is not None:
        raise typer.BadParameter(
            "a password on the command line can be read by every user of this machine;"
            " set SB_ADMIN_PASSWORD, or pipe it in with --password-stdin"
        )


ArgvPassword = Annotated[str | None, typer.Option("--password", hidden=True, callback=refuse_secret_on_argv)]
"""Exists to refuse (contracts section 9 has the flag); never carries a value into a command."""
