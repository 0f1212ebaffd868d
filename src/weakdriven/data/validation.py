"""Validation rows: choose those split off from the training data, and find rows that are in both sets.

A row is split off if the hash of its prompt, as a fraction of the largest hash, is below the share. The choice depends
only on the row. So it is the same for every method and seed, and does not change if rows are added or moved. A larger
share takes the same rows and more, and rows with the same prompt are all on one side.
"""

import json
from collections.abc import Iterable
from hashlib import blake2b

from weakdriven.data.example import Example
from weakdriven.errors import UserError


def is_taken(example: Example, share: float) -> bool:
    """Return whether a row is split off from the training data for validation.

    >>> rows = [Example(str(i), [{"role": "user", "content": f"{i} + 1?"}], str(i + 1)) for i in range(1000)]
    >>> sum(is_taken(row, 0.1) for row in rows)
    91
    """
    turns = [[turn["role"], turn["content"]] for turn in example.prompt if turn["role"] != "system"]
    return int.from_bytes(_hash(turns or example.completion), "big") < share * 2**64


def refuse_rows_in_both(validation: Iterable[Example], training: Iterable[Example], source: str) -> None:
    """Raise an error for validation rows with the prompt and completion of a training row."""
    ids = {_hash_of(example): example.id for example in validation}
    both = {ids[print_]: example.id for example in training if (print_ := _hash_of(example)) in ids}
    if both:
        named = ", ".join(f"{own!r} (training row {other!r})" for own, other in [*both.items()][:5])
        raise UserError(
            f"{len(both)} rows of data.validation are training rows too: {named}{' and more' * (len(both) > 5)}. A "
            f"loss on them would mean nothing; remove them from {source} or from the training data, or split "
            "validation rows off from the training data with data.validation_share."
        )


def _hash_of(example: Example) -> bytes:
    return _hash([example.prompt, example.completion])


def _hash(value: object) -> bytes:
    return blake2b(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), digest_size=8).digest()
