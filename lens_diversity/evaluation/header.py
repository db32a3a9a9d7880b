"""The record of a run: which model, task and settings its numbers belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from lens_diversity import _bridge
from lens_diversity.evaluation.prompts import Encoded
from lens_diversity.models import describe_model
from lens_diversity.tasks import Task
from lens_diversity.units import member_names

FORMAT = 1

_LIBRARIES = ("lens-diversity", "torch", "transformers", "transformer-lens")
_SHOWN_OPTION_SETS = 8
_SAMPLED = 64


@dataclass(frozen=True)
class Kind:
    """A sort of results that a folder can hold."""

    noun: str
    """What it is called."""
    file: str
    """Name of its header."""
    identity: tuple[str, ...]
    """Fields of the header that must agree for two calls to give the same; all else is a record."""
    again: str
    """How to finish one that was stopped."""


RUN = Kind(
    "run",
    "run.json",
    ("format", "n_examples", "model", "task", "settings", "labels", "modules"),
    "Call evaluate with the same model, task and folder again",
)
PROFILE = Kind(
    "profile",
    "profile.json",
    ("format", "kind", "model", "data", "settings", "labels", "modules"),
    "Call profile with the same model, texts, settings and folder again",
)


def kind_of(header: Mapping[str, Any]) -> Kind:
    """Tell what a header describes; only profiles say it."""
    return PROFILE if header.get("kind") == PROFILE.noun else RUN


def run_header(
    model: Any,
    task: Task,
    encoded: Encoded,
    settings: Mapping[str, Any],
    batch_size: int,
    unit: str = "sublayer",
) -> dict[str, Any]:
    """Describe a run before its first forward pass.

    Args:
        model: A ``TransformerBridge``.
        task: The task.
        encoded: The task in the model's tokens.
        settings: What else the numbers depend on.
        batch_size: Examples a forward pass.
        unit: What a member is; the labels say it.

    Returns:
        What `run.json` holds, but for the shards: plain values only.
    """
    labels, modules = member_names(model, unit)
    return {
        "format": FORMAT,
        "model": model_identity(model),
        "task": _describe_task(task, encoded),
        "settings": dict(settings),
        # Where the rows were read; that they are the same rows is what the fingerprint says.
        "data": {"source": dict(task.source), "notes": dict(task.notes)},
        "n_examples": len(task),
        "n_components": len(labels),
        "n_truncated": encoded.n_truncated,
        "soft_cap": _bridge.read_readout(model).soft_cap,
        "batch_size": batch_size,
        "device": str(model.W_U.device),
        **made_now(),
        "labels": labels,
        "modules": modules,
    }


def made_now() -> dict[str, Any]:
    """Name the versions that make something, and the time."""
    return {
        "versions": {name: metadata.version(name) for name in _LIBRARIES},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def model_identity(model: Any) -> dict[str, Any]:
    """Say which model it is, by name and by a fingerprint of its weights."""
    return {
        **describe_model(model),
        "compatibility_mode": bool(model.compatibility_mode),
        "weights": _weights_fingerprint(model.original_model),
    }


def _weights_fingerprint(module: Any) -> str:
    """SHA-256 over the first numbers of every weight: another checkpoint of a name shows."""
    digest = hashlib.sha256()
    for name, weight in sorted(module.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        if weight.device.type != "meta":  # offloaded
            sample = weight.detach().reshape(-1)[:_SAMPLED].float().cpu()
            digest.update(sample.numpy().tobytes())
    return digest.hexdigest()


def _describe_task(task: Task, encoded: Encoded) -> dict[str, Any]:
    kinds = list(dict.fromkeys(tuple(task.row_options(row)) for row in range(len(task))))
    return {
        "name": task.name,
        "version": task.version,
        "template": task.template,
        "answer_prefix": task.answer_prefix,
        "options": [list(kind) for kind in kinds[:_SHOWN_OPTION_SETS]],
        "n_option_sets": len(kinds),
        "multi_token_options": encoded.multi_token,
        "fingerprint": task.fingerprint,
    }
