"""Verified training sets from raw corpora: what `weakdriven data build` does.

Start with `build.py`, the order of the steps; `settings.py` has all settings, `rows.py` reads and verifies the rows,
`overlaps.py` compares them with the benchmarks, `distil.py` has a teacher write completions. How rows are read is in
`data/rows`, what counts as overlap or repeat in `data/overlap`, how answers are verified in `eval/graders`.
"""
