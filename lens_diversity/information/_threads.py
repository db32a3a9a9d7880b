"""One thread for the linear algebra of small matrices."""

from __future__ import annotations

from functools import cache
from typing import Any


def one_thread() -> Any:
    """A context in which linear algebra keeps to one thread.

    The matrices here are small, and threads that wait for each other cost more than they bring: on
    two busy cores, two threads took six times (gaussian) to twenty times (probe) as long as one.
    """
    return _libraries().limit(limits=1)


@cache
def _libraries() -> Any:
    # scikit-learn depends on it, and loads the libraries that it limits.
    import sklearn.linear_model  # noqa: F401
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()
