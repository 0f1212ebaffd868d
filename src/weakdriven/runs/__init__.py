"""A run on disk and the processes that compute it.

`directory` runs stages and skips finished ones (start there); `manifest` notices damaged files; `files` and `yaml`
read and write; `processes`, `launcher` and `signals` are about several processes and their end; `progress`, `redact`,
`disk` and `machine` are what the names say. What the stages compute is not here: nothing in this package knows of
models, data or recipes, and it imports only `weakdriven.errors`.
"""
