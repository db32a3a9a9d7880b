"""Fixtures and settings that the tests share; the root conftest.py holds what doctests need too."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from transformer_lens.model_bridge import TransformerBridge

from tests import families, stories

# The first example of a property loads caches, so a deadline would only measure that.
settings.register_profile(
    "lens_diversity", deadline=None, print_blob=True, derandomize="CI" in os.environ
)
settings.load_profile("lens_diversity")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


@pytest.fixture(scope="session")
def bridge() -> Callable[..., TransformerBridge]:
    """``bridge(name)``: a family's tiny model, built once a session.

    It is shared, so no test may change it: compatibility mode starts from ``families.build``.
    """
    return functools.cache(families.build)


@pytest.fixture(scope="session")
def stories260k() -> TransformerBridge:
    """The real trained model of ``tests.stories``, to be read only."""
    return stories.load()


@pytest.fixture(scope="session")
def smollm2() -> TransformerBridge:
    """SmolLM2-135M-Instruct, to be read only; for tests marked ``smollm2``."""
    import lens_diversity

    return lens_diversity.load_model("smollm2")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real evaluation data, which is not part of the repository."""
    return stories.data_dir()
