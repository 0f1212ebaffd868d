"""Gemma-3: takes the language model out of a multimodal folder (`multimodal.py`) and puts it back (`wrap.py`)."""
