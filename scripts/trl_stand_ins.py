"""Stand-ins for what TRL's tests of SFTTrainer import and load from the Hub: tiny random models, datasets, helpers.

`trl_suite.py` copies this module next to the tests as `testing_utils` and runs them.
"""

import codecs
import importlib.util
import io
import json
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

MODEL = re.compile(r"[\w-]+/tiny-(\w+ForCausalLM)[\w.-]*")
TEMPLATES = {"GPTNeoXForCausalLM": None, "MistralForCausalLM": None, "Qwen3ForCausalLM": "qwen3"}
"""TRL's chat templates by model class (default: qwen2_5); None: neither a template nor a padding token."""
VOCABULARY = 768
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.1,
    "num_experts": 2, "num_local_experts": 2, "n_routed_experts": 2, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "qk_head_dim": 16, "state_size": 4,
    "time_step_rank": 4, "block_ff_dim": 32, "block_dim": 16, "mamba_num_heads": 2, "mamba_head_dim": 16,
    "ssm_state_size": 4, "n_groups": 1, "layers_block_type": None, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip
REMOTE = """from transformers import Qwen2Config, Qwen2ForCausalLM


class RemoteConfig(Qwen2Config):
    model_type = "remote"


class RemoteForCausalLM(Qwen2ForCausalLM):
    config_class = RemoteConfig
"""


def missing(package: str) -> Any:
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"{package} is not installed")


NO_ACCELERATOR = pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
SKIPPED = {
    "require_vision": pytest.mark.skip(reason="WDJTTrainer does not support vision-language models"),
    "require_bitsandbytes": missing("bitsandbytes"),
    "require_kernels": missing("kernels"),
    "require_liger_kernel": NO_ACCELERATOR,
    "require_torch_accelerator": NO_ACCELERATOR,
    "require_torch_multi_accelerator": pytest.mark.skip(reason="needs several accelerators"),
    "xfail_data_parallel": pytest.mark.xfail,
}


class TrlTestCase:
    @pytest.fixture(autouse=True)
    def folder_of_this_test(self, tmp_path: Path) -> None:
        self.tmp_dir = str(tmp_path)


def ignore_warnings(message: str = "", category: type[Warning] = Warning) -> Any:
    return pytest.mark.filterwarnings(f"ignore:{message}:{category.__name__}")


def is_ampere_or_newer() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


def __getattr__(name: str) -> Any:
    """Return decorators for requirements; those that are met here change nothing."""
    if name.startswith("__"):
        raise AttributeError(name)
    return SKIPPED.get(name, lambda test: test)


def proverbs() -> list[str]:
    """Return the Zen of Python, of which TRL's dataset is made: 17 training rows and 2 for evaluation."""
    with redirect_stdout(io.StringIO()):
        import this
    return [line for line in codecs.decode(this.s, "rot13").splitlines()[1:] if line]


def halves(text: str) -> tuple[str, str]:
    words = text.split()
    return " ".join(words[: len(words) // 2]), " " + " ".join(words[len(words) // 2 :])


def turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text.strip()}


def dialogue(text: str) -> tuple[list[dict], list[dict]]:
    prompt, completion = halves(text)
    return [turn("user", prompt)], [turn("assistant", completion)]


def tool_row(text: str) -> dict[str, Any]:
    prompt, completion = dialogue(text)
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    parameters = {"type": "object", "properties": {"place": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "description": "Look it up.", "parameters": parameters}}
    return {"messages": [*prompt, call, {**turn("tool", text), "name": "f"}, *completion], "tools": json.dumps([tool])}


def language_row(text: str) -> dict[str, Any]:
    prompt, completion = dialogue(text)
    return {"messages": prompt + completion}


def completion_row(text: str) -> dict[str, Any]:
    return dict(zip(("prompt", "completion"), dialogue(text), strict=True))


DATASETS: dict[str, dict[str, Callable[[str], dict[str, Any]]]] = {
    "trl-internal-testing/zen": {
        "standard_language_modeling": lambda text: {"text": text},
        "standard_prompt_completion": lambda text: dict(zip(("prompt", "completion"), halves(text), strict=True)),
        "conversational_language_modeling": language_row,
        "conversational_prompt_completion": completion_row,
        "standard_implicit_prompt_preference": lambda text: {"chosen": text, "rejected": text[::-1]},
    },
    "trl-internal-testing/harmony": {"language_modeling": language_row, "prompt_completion": completion_row},
    "trl-internal-testing/toolcall": {"language_modeling": tool_row},
}


def write_datasets(root: Path) -> None:
    texts = proverbs()
    for name, kinds in DATASETS.items():
        lines = ["---", "configs:"]
        for kind, row in kinds.items():
            lines += [f"- config_name: {kind}", "  data_files:"]
            for split, rows in (("train", texts[:-2]), ("test", texts[-2:])):
                file = Path(name, kind, f"{split}.jsonl")
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text("".join(json.dumps(row(text)) + "\n" for text in rows), encoding="utf-8")
                lines += [f"  - split: {split}", f"    path: {file.relative_to(name)}"]
        (root / name / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


def template(name: str) -> str:
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def make_tokenizer(chat: str | None) -> PreTrainedTokenizerFast:
    """Make a byte-level BPE tokenizer; with a chat template, also its special tokens and a padding token."""
    special = ["<|endoftext|>", *(["<|im_start|>", "<|im_end|>"] if chat else [])]
    bpe: Any = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    options: dict[str, Any] = {"special_tokens": special, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    bpe.train_from_iterator(proverbs(), trainers.BpeTrainer(vocab_size=700, show_progress=False, **options))
    names = {"eos_token": special[-1]} | ({"pad_token": special[0]} if chat else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, **names)
    if chat:
        tokenizer.chat_template = template(chat)
    return tokenizer


def tiny_config(kind: Any) -> Any:
    known = kind().to_dict()
    return kind(**{name: value for name, value in SIZES.items() if name in known})


def write_model(kind: str, folder: Path, seed: int) -> None:
    remote = kind == "RemoteForCausalLM"
    model_class: Any = getattr(transformers, "Qwen2ForCausalLM" if remote else kind)
    torch.manual_seed(seed)
    model_class(tiny_config(model_class.config_class)).save_pretrained(folder)
    make_tokenizer(TEMPLATES.get(kind, "qwen2_5")).save_pretrained(folder)
    if remote:
        (folder / "modeling_remote.py").write_text(REMOTE, encoding="utf-8")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        classes = {"AutoConfig": "modeling_remote.RemoteConfig", "AutoModelForCausalLM": f"modeling_remote.{kind}"}
        config |= {"model_type": "remote", "architectures": [kind], "auto_map": classes}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def write_models(root: Path, ids: Iterable[str]) -> dict[str, str]:
    """Write each model twice, with other weights in `weak/`; return why some could not be made."""
    failed = {}
    for name in sorted(ids):
        kind = MODEL.fullmatch(name)
        try:
            for seed, folder in ((1, root / name), (2, root / "weak" / name)):
                write_model(kind[1] if kind else "", folder, seed)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    make_tokenizer("qwen3").save_pretrained(root / "Qwen/Qwen3-4B")
    (root / "template.jinja").write_text(template("qwen3"), encoding="utf-8")
    return failed
