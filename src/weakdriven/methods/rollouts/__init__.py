"""Completions that a method samples from a model before it trains, verified, and the pairs made of them."""
