"""The figures of docs/background/theory*.md are those that the script draws, and the pages use all of them."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from research import theory
from research.theory import counterexamples, figures, unique_rows

ROOT = Path(__file__).parents[2]
PAGES = "".join(
    (ROOT / f"docs/background/{name}.md").read_text(encoding="utf-8") for name in ("theory", "theory-dynamics")
)
NUMBER = re.compile(r"-?\d+\.\d+")


def test_the_committed_figures_are_what_the_script_draws(tmp_path):
    figures.main(tmp_path)
    drawn, committed = (sorted(folder.glob("*.svg")) for folder in (tmp_path, ROOT / "docs/background/theory"))
    assert [x.name for x in drawn] == [x.name for x in committed] == sorted(f"{name}.svg" for name in figures.FIGURES)
    for new, old in zip(drawn, committed, strict=True):
        texts = [path.read_text(encoding="utf-8") for path in (new, old)]
        # another processor may round a coordinate the other way
        assert NUMBER.sub("x", texts[0]) == NUMBER.sub("x", texts[1]), new.name
        coordinates = [[float(x) for x in NUMBER.findall(text)] for text in texts]
        np.testing.assert_allclose(*coordinates, atol=0.21, err_msg=new.name)


def test_figures_are_small_and_stay_inside_their_frames():
    for name, draw in figures.FIGURES.items():
        text = draw().svg()
        svg = ElementTree.fromstring(text)
        assert len(text) < 40_000 and "currentColor" in text and "prefers-color-scheme:dark" in text
        width, height = map(float, svg.attrib["viewBox"].split()[2:])
        for path in svg.iter("{http://www.w3.org/2000/svg}path"):
            if (path.attrib["class"].split() or [""])[0] != "curve":
                continue
            points = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"])
            assert points and all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points), name
        for line in svg.iter("{http://www.w3.org/2000/svg}text"):
            if line.attrib.get("text-anchor", "start") == "start":
                assert float(line.attrib["x"]) + 6.6 * len(line.text or "") < width, line.text


def test_the_gamma_curve_is_the_expected_share():
    weights = np.random.default_rng(0).gamma(1 / 0.65**2, size=20_000)
    assert figures.gamma_unique(0.65) == pytest.approx(unique_rows(weights / weights.sum()).fraction, abs=0.01)


def test_the_pages_name_every_figure_counterexample_and_check():
    assert set(re.findall(r"\]\(theory/([\w-]+)\.svg\)", PAGES)) == set(figures.FIGURES)
    named = {name for name in vars(counterexamples) if name.isupper()}
    assert named and all(f"`{name}`" in PAGES for name in named | set(theory.__all__))


def test_the_example_of_the_pages_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
