"""What a model scored, from the samples of its runs."""

import numpy as np

from weakdriven.report.results import describe


def test_the_interval_of_an_accuracy_stays_between_0_and_1():
    found = describe({"a": np.array([[1.0, 0.0]])})
    assert found["score"] == 0.5 and found["interval"] == (0, 1), "of two problems Student's t knows nothing"
    low, high = describe({"a": np.array([[1.0, 0.0] * 50])})["interval"]
    assert 0.38 < low < 0.42 and 0.58 < high < 0.62
