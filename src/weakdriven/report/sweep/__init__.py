"""A sweep over settings and seeds: `table.py` computes its rows, `figures.py` draws them, `files.py` writes them."""
