"""Bias-diversity decompositions of transformer layers through the logit lens."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lens_diversity import (
        full_vocab,
        functional,
        information,
        lenses,
        paper,
        plots,
        report,
        tasks,
    )
    from lens_diversity._bridge import (
        UnsupportedModelError,
        names_filter,
        require_supported,
        unit_hooks,
    )
    from lens_diversity.capture import component_stack
    from lens_diversity.effects import AblationEffects, ablation_effects
    from lens_diversity.ensemble import decompose, junctions, leave_one_out
    from lens_diversity.evaluation import Run, load_run
    from lens_diversity.evaluation.evaluate import evaluate
    from lens_diversity.hierarchies import Hierarchy, hierarchy
    from lens_diversity.information import select_components
    from lens_diversity.loops import looped_component_stack
    from lens_diversity.metrics import metric
    from lens_diversity.models import load_model
    from lens_diversity.neurons import NeuronStack
    from lens_diversity.profiling import Profile, load_profile, profile
    from lens_diversity.readout import Readout, component_logits
    from lens_diversity.results import Decomposition
    from lens_diversity.stack import ComponentStack
    from lens_diversity.verification import verify

__version__ = "0.1.0"

__all__ = [
    "AblationEffects",
    "ComponentStack",
    "Decomposition",
    "Hierarchy",
    "NeuronStack",
    "Profile",
    "Readout",
    "Run",
    "UnsupportedModelError",
    "ablation_effects",
    "component_logits",
    "component_stack",
    "decompose",
    "evaluate",
    "full_vocab",
    "functional",
    "hierarchy",
    "information",
    "junctions",
    "leave_one_out",
    "lenses",
    "load_model",
    "load_profile",
    "load_run",
    "looped_component_stack",
    "metric",
    "names_filter",
    "paper",
    "plots",
    "profile",
    "report",
    "require_supported",
    "select_components",
    "tasks",
    "unit_hooks",
    "verify",
]

# Imported on first use: torch and TransformerLens take seconds, which `lens-diversity --help`
# and shell completion need not wait for.
_HOMES = {
    "AblationEffects": "effects",
    "ComponentStack": "stack",
    "Decomposition": "results",
    "Hierarchy": "hierarchies",
    "NeuronStack": "neurons",
    "Profile": "profiling",
    "Readout": "readout",
    "Run": "evaluation",
    "UnsupportedModelError": "_bridge",
    "ablation_effects": "effects",
    "component_logits": "readout",
    "component_stack": "capture",
    "decompose": "ensemble",
    "evaluate": "evaluation",
    "hierarchy": "hierarchies",
    "junctions": "ensemble",
    "leave_one_out": "ensemble",
    "load_model": "models",
    "load_profile": "profiling",
    "load_run": "evaluation",
    "looped_component_stack": "loops",
    "metric": "metrics",
    "names_filter": "_bridge",
    "profile": "profiling",
    "require_supported": "_bridge",
    "select_components": "information",
    "unit_hooks": "_bridge",
    "verify": "verification",
}
_MODULES = (
    "full_vocab",
    "functional",
    "information",
    "lenses",
    "paper",
    "plots",
    "report",
    "tasks",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
