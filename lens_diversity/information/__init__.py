"""Information between the members' outputs and the label (section 3.4, Theorems 4-8), in bits."""

from lens_diversity.information.ablation import Ablation, mean_ablation
from lens_diversity.information.bounds import ErrorBounds, error_bounds, tight_fano
from lens_diversity.information.curves import Curve, curve
from lens_diversity.information.discrete import ExactTerms, exact_information, exact_terms
from lens_diversity.information.estimates import Estimate, InsufficientSampleError, Terms
from lens_diversity.information.estimators import mutual_information, terms
from lens_diversity.information.runs import RunInformation, of_run
from lens_diversity.information.selection import Selection, select_components
from lens_diversity.information.submodularity import (
    SubmodularityGap,
    submodularity_gap,
    within_class_permutation,
)

__all__ = [
    "Ablation",
    "Curve",
    "ErrorBounds",
    "Estimate",
    "ExactTerms",
    "InsufficientSampleError",
    "RunInformation",
    "Selection",
    "SubmodularityGap",
    "Terms",
    "curve",
    "error_bounds",
    "exact_information",
    "exact_terms",
    "mean_ablation",
    "mutual_information",
    "of_run",
    "select_components",
    "submodularity_gap",
    "terms",
    "tight_fano",
    "within_class_permutation",
]
