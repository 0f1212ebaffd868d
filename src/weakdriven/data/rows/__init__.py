"""Raw rows: where they are read from and which layout they have.

`files.py` reads and identifies the rows of a file, a Hub dataset (`hub.py`) or an address (`remote.py`); `layouts.py`
turns a row of any layout into an Example; `sources.py` puts both together and is the place to start.
"""
