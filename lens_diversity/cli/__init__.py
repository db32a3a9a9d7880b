"""The command line, one module for each group of commands."""

# The help lists commands in the order in which they are imported.
# isort: off
from lens_diversity.cli._app import app
from lens_diversity.cli import runs, corpora, information, models, tasks, bench

# isort: on

__all__ = ["app", "bench", "corpora", "information", "main", "models", "runs", "tasks"]


def main() -> None:
    """Run the command line."""
    app()
