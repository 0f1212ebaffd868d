"""Writes the script that draws a report's figures: vl-convert's Vega, Vega-Lite and Vega-Embed in one file.

Run it after upgrading vl-convert-python; `tests/report/test_figure.py` fails until both agree.
"""

from pathlib import Path

import vl_convert

from weakdriven.report.figure import VEGA_LITE

TARGET = Path(__file__).parent.parent / "src/weakdriven/report/templates/vega.js"


def bundle() -> str:
    vega, embed = vl_convert.get_vega_version(), vl_convert.get_vega_embed_version()
    versions = f"Vega {vega}, Vega-Lite {VEGA_LITE}, Vega-Embed {embed}"
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return f"/* {versions}; BSD-3-Clause, https://github.com/vega */\n{script.rstrip()}\n"


if __name__ == "__main__":
    TARGET.write_text(bundle(), encoding="utf-8")
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")
