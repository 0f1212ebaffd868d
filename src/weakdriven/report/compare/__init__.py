"""Several runs, or a folder of `weakdriven compare`: `table.py`. `page.py` is their page, and that of a sweep."""
