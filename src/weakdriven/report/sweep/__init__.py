"""Results of a sweep over settings and seeds: `files.py` computes and writes them, `figures.py` draws them."""
