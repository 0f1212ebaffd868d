"""Samples completions from a model before a method trains, verifies them and makes pairs of them."""
