"""Comparisons of runs: `table.py` computes the rows and tables, `page.py` makes the page, also that of a sweep."""
