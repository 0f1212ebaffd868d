"""Gemma-3: the language model out of a multimodal folder (`multimodal.py`) and back into one (`wrap.py`)."""
