"""Finds, checks and loads causal LMs, with their heads, adapters and faster layers.

`load.py` checks early whether a model can be used. `head.py` reads hidden states and the head through transformers'
public interfaces. `gemma3` handles the language model inside multimodal Gemma-3. Nothing here trains. Start with
`load.py`.
"""
