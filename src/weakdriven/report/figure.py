"""A figure is a Vega-Lite specification: a page draws it in the reader's browser, and it can be written as a file.

Colours are names such as "@blue", so that one specification serves light pages, dark pages and print.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakdriven.runs.files import write_text

VEGA_LITE = "6.4"
"""Vega-Lite version of pages and files; `scripts/vega_bundle.py` writes the pages' script."""
TEMPLATES = Path(__file__).parent / "templates"
STYLE = json.loads((TEMPLATES / "figures.json").read_text(encoding="utf-8"))
PALETTE: dict[str, list[str]] = STYLE["palette"]
"""Colours on a light and on a dark page, by name."""
CONFIG: dict[str, Any] = STYLE["config"]
LIGHT = {name: light for name, (light, _) in PALETTE.items()}
OF_THE_PAGE = {name: f"var(--{name})" for name in PALETTE}
"""CSS variables of the page: figures follow its theme without being drawn again."""


@dataclass(frozen=True)
class Figure:
    """A figure with its data."""

    name: str
    """Name of its files and of its place on a page: letters, digits and hyphens."""
    title: str
    spec: dict[str, Any]
    """Vega-Lite, one view or its layers, without `$schema`, `config` and `width`; colours are names."""
    caption: str = ""


def coloured(value: Any, colours: dict[str, str]) -> Any:
    """Replace every colour name inside a value.

    >>> coloured({"mark": {"color": "@blue"}}, LIGHT)
    {'mark': {'color': '#0069a8'}}
    """
    if isinstance(value, dict):
        return {key: coloured(item, colours) for key, item in value.items()}
    if isinstance(value, list):
        return [coloured(item, colours) for item in value]
    return colours.get(value[1:], value) if isinstance(value, str) and value.startswith("@") else value


def drawn_by_page(figures: Iterable[Figure]) -> dict[str, Any]:
    """Return what the page's script needs: the style, and the figures by name."""
    specs = {figure.name: {"width": "container", **coloured(figure.spec, OF_THE_PAGE)} for figure in figures}
    return {"config": coloured(CONFIG, OF_THE_PAGE), "specs": specs}


def write_figures(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Write NAME.svg and NAME.png of each figure in light colours."""
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    look = {"width": 480, "config": CONFIG | {"background": "@card"}}
    for figure in figures:
        spec = coloured({**look, "title": figure.title, **figure.spec}, LIGHT)
        svg, png = folder / f"{figure.name}.svg", folder / f"{figure.name}.png"
        write_text(svg, vl_convert.vegalite_to_svg(spec, VEGA_LITE))
        png.write_bytes(vl_convert.vegalite_to_png(spec, VEGA_LITE, scale=2))
        paths += [svg, png]
    return paths
