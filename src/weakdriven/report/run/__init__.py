"""The page of one run: `page.py` gathers its content, `follow.py` rewrites it while the run goes on.

One module for each part of the page: `verdict`, `figures`, `diagnosis`, `tokens`, `answers`, `costs`, `training_set`.
"""
