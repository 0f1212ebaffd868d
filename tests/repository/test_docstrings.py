"""The examples in docstrings are right."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(root).with_suffix("").parts)
    for root, package in ((ROOT / "src", "weakdriven"), (ROOT, "research"))
    for path in (root / package).rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module):
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted and not found.failed
