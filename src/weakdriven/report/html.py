"""Render Jinja templates into pages that contain their style, scripts and data."""

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from weakdriven.report.figure import PALETTE, TEMPLATES, Figure, drawn_by_page
from weakdriven.report.format import colour, duration, gibibytes, in_prose, model_name, number, percent, plain, shorten


def render(template: str, shown: dict[str, Any], figures: Iterable[Figure]) -> str:
    parts = {"css": part("page.css"), "vega": part("vega.js"), "script": part("page.js"), "palette": PALETTE}
    data = {"figures_json": embedded(drawn_by_page(figures))}
    page = environment().get_template(template).render(shown | parts | data)
    # model output may hold half a surrogate pair, which JSON can hold but UTF-8 cannot
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def environment(**options: Any) -> Environment:
    """Return the templates, cached because the page of a followed run is rendered repeatedly."""
    loader = FileSystemLoader(TEMPLATES)
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, **options)
    filters = (number, percent, duration, plain, shorten, colour, model_name, in_prose, gibibytes)
    made.filters |= {function.__name__: function for function in filters}
    return made


@cache
def part(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def embedded(value: Any) -> Markup:
    """Encode JSON for a script element, so that no character of it can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
