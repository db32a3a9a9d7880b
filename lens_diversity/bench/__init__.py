"""What the full-vocabulary engines cost on this machine, as ratios measured in one process."""

from lens_diversity.bench.meter import Measurement, Meter
from lens_diversity.bench.shapes import SHAPES, Shape
from lens_diversity.bench.tables import TABLES

__all__ = ["SHAPES", "TABLES", "Measurement", "Meter", "Shape"]
