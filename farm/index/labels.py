"""What the labels of wheel variants stand for (drafts of PEP 825 and 850): `variants.yaml` in the words of JSON."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import Field

from farm.base.errors import UsageError
from farm.index.pages import Model, Properties


class _Facts(Model):
    """`variants.yaml`."""

    sources: dict[str, str]
    schema_url: str = Field(alias="schema")
    namespaces: tuple[str, ...]
    providers: dict[str, dict[str, Any]]
    sm_min: int
    levels: dict[str, str]


@cache
def _facts() -> _Facts:
    text = (resources.files("farm.index") / "variants.yaml").read_text(encoding="utf-8")
    return _Facts.model_validate(yaml.safe_load(text))


def properties(gpu: str, sms: Sequence[int], cpu: str) -> tuple[str, Properties]:
    """Label and properties of a wheel: `sm61_v3` for the words sm61 and avx2.

    Raises:
        UsageError: The drafts, or uv, have no words for it.
    """
    known = _facts()
    level = known.levels.get(cpu)
    real = [f"{sm}_real" for sm in sms if sm >= known.sm_min]
    if level is None or (sms and not real) or gpu == "mps":
        raise UsageError(
            f"wheel variants have no words for {gpu} and {cpu}",
            hint=f"GPUs from sm_{known.sm_min} on, CPUs {', '.join(known.levels)}; else there is the root {gpu}-{cpu}",
        )
    found: Properties = {"x86_64": {"level": [level]}}
    if real:
        found["nvidia"] = {"sm_arch": real}
    return f"{gpu}_{level}", found


def variant_json(labels: Mapping[str, Properties]) -> dict[str, Any]:
    """The content of `variant.json` for one label, and of `…-variants.json` for all of a version."""
    known = _facts()
    return {
        "$schema": known.schema_url,
        "default-priorities": {"namespace": list(known.namespaces)},
        "providers": known.providers,
        "variants": dict(sorted(labels.items())),
    }


def render(labels: Mapping[str, Properties]) -> bytes:
    """`…-variants.json`."""
    return json.dumps(variant_json(labels), sort_keys=True).encode()


def has(page: bytes, labels: Mapping[str, Properties]) -> bool:
    """Is it a page that `render` made of these labels, and perhaps more? Labels are only ever added."""
    try:
        shown = json.loads(page)["variants"]
        return bool(page == render(shown) and labels.items() <= shown.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
