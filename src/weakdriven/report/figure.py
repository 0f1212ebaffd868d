"""One figure: a Vega-Lite specification that a page draws in the reader's browser and that also becomes files.

A colour in a specification is a name such as "@blue", so that one figure serves a light page, a dark one and print.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakdriven.runs.files import write_text

VEGA_LITE = "6.4"
"""Version of Vega-Lite that pages and files are drawn with; `scripts/vega_bundle.py` writes the script of the pages."""
TEMPLATES = Path(__file__).parent / "templates"
STYLE = json.loads((TEMPLATES / "figures.json").read_text(encoding="utf-8"))
PALETTE: dict[str, list[str]] = STYLE["palette"]
"""Name to the colour on a light page and on a dark one."""
CONFIG: dict[str, Any] = STYLE["config"]
LIGHT = {name: light for name, (light, _) in PALETTE.items()}
OF_THE_PAGE = {name: f"var(--{name})" for name in PALETTE}
"""The page's own variables: a figure in it follows its theme without being drawn again."""


@dataclass(frozen=True)
class Figure:
    """What a figure shows, with its data inside."""

    name: str
    """Of its files, and of its place on a page: letters, digits and hyphens."""
    title: str
    spec: dict[str, Any]
    """Vega-Lite, one view or layers of one, without `$schema`, `config`, `width` and colours by value."""
    caption: str = ""


def coloured(value: Any, colours: dict[str, str]) -> Any:
    """The value with every colour name inside it replaced.

    >>> coloured({"mark": {"color": "@blue"}}, LIGHT)
    {'mark': {'color': '#0069a8'}}
    """
    if isinstance(value, dict):
        return {key: coloured(item, colours) for key, item in value.items()}
    if isinstance(value, list):
        return [coloured(item, colours) for item in value]
    return colours.get(value[1:], value) if isinstance(value, str) and value.startswith("@") else value


def drawn_by_page(figures: Iterable[Figure]) -> dict[str, Any]:
    """What the script of a page needs: how figures look, and each by its name."""
    specs = {figure.name: {"width": "container", **coloured(figure.spec, OF_THE_PAGE)} for figure in figures}
    return {"config": coloured(CONFIG, OF_THE_PAGE), "specs": specs}


def write_figures(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """NAME.svg and NAME.png of each figure, light."""
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
