"""The versions that pyproject.toml allows, and the files that pin them for development and for `make test-oldest`."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

tomllib = pytest.importorskip("tomllib")  # Python 3.11
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RANGES = [Requirement(text) for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cuda"])]


def pins(file: str) -> dict[str, str]:
    lines = (line.partition("#")[0] for line in (ROOT / file).read_text(encoding="utf-8").splitlines())
    found = [Requirement(line) for line in lines if line.strip()]
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in found}


def bound(requirement: Requirement, operator: str) -> str:
    return next(one.version for one in requirement.specifier if one.operator == operator)


def test_the_oldest_versions_that_are_tested_are_those_that_can_be_installed():
    floors = {canonicalize_name(one.name): bound(one, ">=") for one in RANGES}
    build = pins("constraints.txt")["torch"]  # older ones have no build without CUDA
    assert pins("constraints-oldest.txt") == floors | {"torch": build}


def test_development_versions_can_be_installed():
    pinned = pins("constraints.txt")
    assert [one.name for one in RANGES if not one.specifier.contains(pinned[canonicalize_name(one.name)])] == []


def test_only_a_major_version_is_excluded():
    assert [str(one) for one in RANGES if not bound(one, "<").isdigit()] == []


@pytest.mark.xdist_group("one-worker")
def test_pytest_xdist_knows_the_groups_of_tests(request):
    """A release of pytest has hidden them, without an error: each worker built what a group shares."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("without --dist loadgroup pytest-xdist has no groups that could be lost; make test sets it")
    assert request.node.nodeid.endswith("@one-worker")
