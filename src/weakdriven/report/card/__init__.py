"""The model card of a run's result, and pushing that result to the Hub.

`card.py` gathers the facts for `templates/card.md.j2`; `front_matter.py` writes the part that the Hub reads;
`public_names.py` keeps paths of this machine out; `hub.py` pushes.
"""

from weakdriven.report.card.card import write_cards

__all__ = ["write_cards"]
