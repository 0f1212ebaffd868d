"""Training data: rows of a file become examples, and examples become tokens; and what must not be trained on.

Start with `prompts.py` and `tokenize.py`: they decide which text a model sees and which tokens are supervised.
`example.py` is the type between source and tokens. `rows/` reads files, Hub datasets and addresses in any known layout.
`questions.py` writes the user messages of problems, for training and benchmarks alike. `tags.py` and `structure.py`
define the forms of a completion; `overlap/` finds benchmark questions and repeats; `demo.py` generates the demo's
problems. Building verified sets is in `build`, benchmarks are in `eval`.
"""
