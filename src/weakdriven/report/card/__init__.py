"""The model card of a run's result, and the upload of that result to the Hub."""

from weakdriven.report.card.card import write_cards

__all__ = ["write_cards"]
