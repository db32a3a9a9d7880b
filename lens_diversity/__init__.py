"""Bias-diversity decompositions of transformer layers through the logit lens."""

from lens_diversity import functional, plots, tasks
from lens_diversity._bridge import UnsupportedModelError, names_filter, require_supported
from lens_diversity.capture import ComponentStack, component_stack
from lens_diversity.ensemble import decompose, junctions, leave_one_out
from lens_diversity.evaluation import Run, evaluate, load_run
from lens_diversity.models import load_model
from lens_diversity.readout import Readout, component_logits
from lens_diversity.results import Decomposition
from lens_diversity.verification import verify

__version__ = "0.1.0"

__all__ = [
    "ComponentStack",
    "Decomposition",
    "Readout",
    "Run",
    "UnsupportedModelError",
    "component_logits",
    "component_stack",
    "decompose",
    "evaluate",
    "functional",
    "junctions",
    "leave_one_out",
    "load_model",
    "load_run",
    "names_filter",
    "plots",
    "require_supported",
    "tasks",
    "verify",
]
