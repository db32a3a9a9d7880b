"""Decompositions averaged over whole corpora: next-token predictions over the full vocabulary."""

from lens_diversity.profiling.measure import profile
from lens_diversity.profiling.result import Profile, load_profile

__all__ = ["Profile", "load_profile", "profile"]
