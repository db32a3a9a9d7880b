"""What every collected test needs before the package is imported, its doctests included."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("lens_diversity", "beartype.beartype")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give every test the same random numbers, whichever tests ran before it."""
    torch.manual_seed(0)
