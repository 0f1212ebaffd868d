"""Overlap between texts: training rows with benchmark questions, and training rows with each other.

Start with `find.py`, which defines the kinds of overlap. `fingerprint.py` defines which parts of a text are compared,
`near_duplicates.py` finds near pairs fast. `held_out.py` is the check before every training, `decontaminate.py` the
stricter check of `weakdriven data build`.
"""
