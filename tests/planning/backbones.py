"""config.json of the four backbones of the shipped recipes, cut to what decides their shape."""

import json
from pathlib import Path
from typing import Any

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-4B-Base": QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "Qwen/Qwen3-8B-Base": QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
    "Qwen/Qwen2.5-3B": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "google/gemma-3-4b-pt": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 1024,
            "vocab_size": 262208,
        },
        "vision_config": {"model_type": "siglip_vision_model"},
    },
}
PARAMETERS = {
    "Qwen/Qwen3-4B-Base": 4_022_468_096,
    "Qwen/Qwen3-8B-Base": 8_190_735_360,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "google/gemma-3-4b-pt": 3_880_263_168,
}
"""As published; of Gemma-3 its language model."""


def write_configs(folder: Path) -> dict[str, Path]:
    """Hub id to a folder with config.json and nothing else."""
    folders = {}
    for name, config in CONFIGS.items():
        folders[name] = folder / name.rsplit("/", 1)[-1]
        folders[name].mkdir(parents=True)
        (folders[name] / "config.json").write_text(json.dumps(config))
    return folders
