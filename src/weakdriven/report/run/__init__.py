"""The page of one run: `page.py` gathers its content, writes it, and rewrites it while the run goes on."""
