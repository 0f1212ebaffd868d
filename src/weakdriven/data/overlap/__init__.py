"""Overlap between texts: training rows with benchmark questions, and training rows with each other.

`find.py` defines the kinds of overlap and is the place to start; `fingerprint.py` says what of a text is compared,
`near_duplicates.py` finds near pairs fast. `held_out.py` is the check before every training, `decontaminate.py` the
stricter one of `weakdriven data build`.
"""
