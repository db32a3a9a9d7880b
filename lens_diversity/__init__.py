"""Bias-diversity decompositions of transformer layers through the logit lens."""

__version__ = "0.1.0"
