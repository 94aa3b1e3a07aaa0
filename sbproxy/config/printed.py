"""Writes the effective document as YAML or JSON, so that reading it back gives the same configuration."""

from __future__ import annotations

import json
from typing import Any

import yaml

from sbproxy.config.core.effective import effective
from sbproxy.config.core.scalars import typed
from sbproxy.config.core.serve_notes import provenance
from sbproxy.config.load import Loaded


def as_yaml(loaded: Loaded) -> str:
    """The effective document, defaults filled in; a secret is shown only where a reference was written.

    Comments at the top tell which deployments and providers ``serve:`` blocks were lowered to.
    """
    document = effective(loaded.config, loaded.references)
    notes = "".join(f"# {note}\n" for note in lowering_notes(loaded))
    return notes + yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def lowering_notes(loaded: Loaded) -> tuple[str, ...]:
    """Where each deployment that no ``proxy.model_host.deployments`` names comes from; empty without serve blocks."""
    if not loaded.served:
        return ()
    return (
        "serve blocks are shown as the deployments and managed providers that they mean:",
        *provenance(loaded.served),
    )


def as_json(loaded: Loaded) -> str:
    """The same as one JSON object; strings hold no control bytes."""
    return json.dumps(effective(loaded.config, loaded.references), indent=2)


class _Dumper(yaml.SafeDumper):
    """Quotes what our reader would take for something else than text, and never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    try:
        plain = typed(text) == text
    except ValueError:
        plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)
