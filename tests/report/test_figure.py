"""Figures as files, and the script that draws them on a page."""

import importlib.util
import json
from pathlib import Path

import pytest

from weakdriven.report.figure import PALETTE, Figure, coloured, drawn_by_page, write_figures
from weakdriven.report.plots import Curve, bar_figure, interval_figure, line_figure

ROOT = Path(__file__).parents[2]
CURVE = line_figure("c", "C", [Curve("a", "blue", [(0, 1.0), (1, None), (2, 3.0)])], x="step", y="loss")


def test_the_script_of_the_pages_is_the_one_that_draws_the_files():
    found = importlib.util.spec_from_file_location("vega_bundle", ROOT / "scripts/vega_bundle.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.bundle() == module.TARGET.read_text(encoding="utf-8")


def test_no_colour_is_left_without_a_value():
    assert CURVE is not None
    light = json.dumps(coloured(CURVE.spec, {name: shades[0] for name, shades in PALETTE.items()}))
    page = json.dumps(drawn_by_page([CURVE]))
    assert '"@' not in light and PALETTE["blue"][0] in light
    assert '"@' not in page and "var(--blue)" in page and "#" not in page


@pytest.mark.parametrize(
    "figure",
    [
        CURVE,
        bar_figure("b", "B", [{"group": "g", "name": "a", "value": 1.5}], x="x", colours={"a": "blue"}),
        interval_figure(
            "i", "I", [{"label": "a", "colour": "blue", "value": 1, "low": 0, "high": 2, "text": "1"}], x="x"
        ),
    ],
    ids=lambda one: one.name,
)
def test_every_shape_becomes_an_svg_and_a_png(tmp_path: Path, figure: Figure):
    svg, png = write_figures([figure], tmp_path)
    assert svg.read_text().startswith("<svg") and figure.title in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 2000


def test_what_is_no_number_is_left_out_of_every_shape():
    assert CURVE is not None and [row["y"] for row in CURVE.spec["data"]["values"]] == [1.0, 3.0]
    assert line_figure("c", "C", [Curve("a", "blue", [(0, None)])], x="", y="") is None
    assert bar_figure("b", "B", [{"group": "g", "name": "a", "value": None}], x="", colours={"a": "blue"}) is None
