"""The study of docs/evidence as code: what it runs, what it keeps of the runs, and the page that it computes from that.

`run` is a sitting of the study; `python -m research.evidence` collects results and writes the page (`page`, from what
`results` tests); `data` makes the training set; `check` repeats a round without the package. protocol.md says why.
"""
