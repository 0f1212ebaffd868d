"""Training data: from the rows of a file to examples to tokens, and what must not be trained on.

`example.py` is the type between source and tokens. `rows/` reads files, Hub datasets and addresses in any known layout;
`prompts.py` and `tokenize.py` decide which text a model sees and which tokens are supervised: start there.
`questions.py` words the problems, for training and benchmarks alike; `tags.py` and `structure.py` know the forms of a
completion; `overlap/` finds benchmark questions and repeats; `demo.py` generates the demo's problems. Building verified
sets is in `build`, benchmarks are in `eval`.
"""
