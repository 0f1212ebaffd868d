"""Raw rows: where they are read from and which layout they have.

`files.py` finds and identifies the rows of a file (`formats.py`), a folder, an address (`remote.py`) or a Hub dataset
(`hub.py`); `layouts.py` turns a row of any layout into an Example; `sources.py` puts both together and is the place to
start.
"""
