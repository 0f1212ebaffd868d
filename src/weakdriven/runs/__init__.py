"""A run on disk and the processes that compute it. Start with `executor`, which runs stages and skips finished ones.

`stage`, `directory`, `take_over` and `manifest` handle stages and their folders; `files` and `yaml` read and write;
`processes`, `launcher` and `signals` start, synchronize and stop processes. This package knows nothing of models, data
or recipes, and imports only `weakdriven.errors`.
"""
