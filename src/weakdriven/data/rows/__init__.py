"""Raw rows: where they are read from, and their layouts.

Start with `sources.py`, which joins the parts. `files.py` finds and identifies the rows of a file (`formats.py`), a
folder, an address (`remote.py`) or a Hub dataset (`hub.py`); `layouts.py` turns a row of any layout into an Example.
"""
