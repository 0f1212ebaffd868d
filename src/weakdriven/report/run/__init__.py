"""The page of one run: `page.py` gathers its content, `follow.py` rewrites it while the run goes on."""
