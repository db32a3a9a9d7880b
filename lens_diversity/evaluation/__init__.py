"""Evaluations of models on tasks: forward passes, their storage, and what follows from them."""

from lens_diversity.evaluation._lock import RunLockedError
from lens_diversity.evaluation.evaluate import evaluate
from lens_diversity.evaluation.run import Run, load_run
from lens_diversity.evaluation.store import DamagedRunError, UnfinishedRunError

__all__ = [
    "DamagedRunError",
    "Run",
    "RunLockedError",
    "UnfinishedRunError",
    "evaluate",
    "load_run",
]
