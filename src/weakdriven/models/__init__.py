"""Causal LMs as this package needs them: found, checked and loaded, with their heads, adapters and faster layers.

`load.py` says early whether a model can be used, `head.py` reads hidden states and head through transformers' public
interfaces, `gemma3` holds the language model inside multimodal Gemma-3. Nothing here trains. Start with `load.py`.
"""
