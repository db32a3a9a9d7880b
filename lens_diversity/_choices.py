"""The check of an argument that is one of a few names."""

from __future__ import annotations

from collections.abc import Collection


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Check that an argument is one of the known names.

    Raises:
        ValueError: If it is not; the message lists them.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")
