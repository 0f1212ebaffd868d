"""A run on disk and the processes that compute it; `executor` runs stages and skips finished ones: start there.

`stage`, `directory`, `take_over` and `manifest` are about stages and their folders; `files` and `yaml` read and write;
`processes`, `launcher` and `signals` are about several processes and their end. What the stages compute is not here:
nothing in this package knows of models, data or recipes, and it imports only `weakdriven.errors`.
"""
