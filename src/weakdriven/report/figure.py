"""One figure: a Vega-Lite specification that a page draws in the reader's browser and that also becomes files.

A colour in a specification is a name such as "@blue", so that one figure serves a light page, a dark one and print.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakdriven.rundir import write_text

VEGA_LITE = "6.4"
"""Version of Vega-Lite that pages and files are drawn with; `scripts/vega_bundle.py` writes the script of the pages."""
PALETTE = {
    "paper": ("#fcfcfa", "#14181c"),
    "card": ("#ffffff", "#1b2026"),
    "ink": ("#1d2329", "#e6e9ec"),
    "soft": ("#5a646e", "#a0abb5"),
    "line": ("#dfe2e4", "#333b43"),
    "grey": ("#737d87", "#98a3ae"),
    "green": ("#00805d", "#3cc49a"),
    "orange": ("#c25100", "#f0a04b"),
    "blue": ("#0069a8", "#5fb4ee"),
    "purple": ("#a3508a", "#df94c6"),
}
"""Name to the colour on a light page and on a dark one."""
CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "@soft",
        "titleColor": "@soft",
        "gridColor": "@line",
        "domainColor": "@line",
        "tickColor": "@line",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": "@ink", "titleColor": "@soft", "labelFontSize": 12, "orient": "top", "title": None},
    "line": {"strokeWidth": 1.8},
    "rule": {"color": "@soft"},
    "text": {"color": "@soft"},
    "range": {"category": ["@blue", "@orange", "@green", "@purple", "@grey"]},
}
"""How every figure looks."""


@dataclass(frozen=True)
class Figure:
    """What a figure shows, with its data inside."""

    name: str
    """Of its files, and of its place on a page: letters, digits and hyphens."""
    title: str
    spec: dict[str, Any]
    """Vega-Lite, one view or layers of one, without `$schema`, `config`, `width` and colours by value."""
    caption: str = ""


def coloured(value: Any, *, dark: bool = False) -> Any:
    """The value with every colour name inside it replaced.

    >>> coloured({"mark": {"color": "@blue"}})
    {'mark': {'color': '#0069a8'}}
    """
    if isinstance(value, dict):
        return {key: coloured(item, dark=dark) for key, item in value.items()}
    if isinstance(value, list):
        return [coloured(item, dark=dark) for item in value]
    if isinstance(value, str) and value.startswith("@") and value[1:] in PALETTE:
        return PALETTE[value[1:]][dark]
    return value


def write_figures(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """NAME.svg and NAME.png of each figure, light."""
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in figures:
        config = CONFIG | {"background": "@card"}
        spec = coloured({"width": 480, "title": figure.title, "config": config, **figure.spec})
        svg, png = folder / f"{figure.name}.svg", folder / f"{figure.name}.png"
        write_text(svg, vl_convert.vegalite_to_svg(spec, VEGA_LITE))
        png.write_bytes(vl_convert.vegalite_to_png(spec, VEGA_LITE, scale=2))
        paths += [svg, png]
    return paths
