"""Verified training sets from raw corpora, for `weakdriven data build`.

Start with `build.py`, which has the order of the steps. `settings.py` has all settings, `rows.py` reads and verifies
the rows, `overlaps.py` compares them with the benchmarks, `distil.py` lets a teacher write completions. Reading rows is
in `data/rows`, the definition of overlaps and repeats in `data/overlap`, verification of answers in `eval/graders`.
"""
