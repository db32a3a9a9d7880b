"""The public names are there, and are not paid for before they are used."""

import subprocess
import sys

import pytest

import lens_diversity as ld


def test_every_public_name_exists():
    assert all(getattr(ld, name) is not None for name in ld.__all__)
    assert set(ld.__all__) <= set(dir(ld))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'decomposer'"):
        _ = ld.decomposer


def test_help_does_not_wait_for_torch():
    code = "import sys, lens_diversity.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
