"""The page of one run. `page.py` gathers its content, writes the page, and rewrites it while the run continues."""
