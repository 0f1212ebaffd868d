"""The cross-check with lm-eval, as far as it can be tested without lm-eval."""

from research.lm_eval.compare import HarnessTask, summary


def test_a_summary_names_the_rows_where_texts_and_verdicts_differ():
    rows = [{"id": str(i), "text": f"text {i}", "correct": i == 1} for i in range(3)]
    samples = [
        {"doc": {"id": str(i)}, "filter": filter, "resps": [["text 1" if i == 2 else f"text {i}"]], "exact_match": 1.0}
        for filter in ("first", "last")
        for i in range(3)
    ]
    found = summary(HarnessTask("some.yaml", "exact_match,last"), {"exact_match,last": 1.0}, samples, rows)
    assert (found["items"], found["accuracy"]) == (3, 1.0)
    assert found["other_text"] == ["2"] and found["other_verdict"] == ["0", "2"]
