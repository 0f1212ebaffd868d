"""In-process generation with the embedded model: batches, endings, seeds, and whose settings count."""

import numpy as np
import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from helpers import demo_examples, embedded_tokenizer, tiny_model
from weakdriven.errors import UserError
from weakdriven.eval.generate import Completion, Request, Sampling, generate, request_seed
from weakdriven.eval.generate import local as local_module
from weakdriven.eval.generate.local import LocalEngine, choose, drawn, fitting_batch
from weakdriven.models.load import load_model, locate_model
from weakdriven.wmss.mixture import MixtureForCausalLM

PROMPTS = [" ".join([example.prompt[0]["content"]] * (1 + i % 3)) for i, example in enumerate(demo_examples(12))]
TOKENIZER = embedded_tokenizer()
END_OF_TEXT, END_OF_TURN = TOKENIZER.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
REQUESTS = [Request(ids, request_seed(42, str(row), 0)) for row, ids in enumerate(TOKENIZER(PROMPTS)["input_ids"])]
WARM = {"temperature": 1.5, "top_p": 0.95}


@pytest.fixture
def model():
    return load_model(locate_model("embedded:base"), precision="fp32")


def complete(
    model, requests=REQUESTS, *, batch_size=12, max_new_tokens=64, stop=END_OF_TEXT, batching="static", **sampling
) -> list[Completion]:
    """Completions in the order of the requests, each of which must have been answered once."""
    answers: dict[int, Completion] = {}
    engine = LocalEngine(model, TOKENIZER, batch_size, batching)
    generate(engine, requests, Sampling(max_new_tokens, (stop,), **sampling), answers.update)
    return [answers[i] for i in range(len(requests))]


@pytest.fixture(scope="module")
def greedy() -> list[Completion]:
    """What the model writes to each prompt."""
    return complete(load_model(locate_model("embedded:base"), precision="fp32"))


def test_every_prompt_is_completed_once_and_the_same_in_any_batch(model, greedy):
    assert len({len(request.prompt) for request in REQUESTS}) > 6
    assert complete(model, batch_size=5) == greedy
    assert len({completion.text for completion in greedy}) > 6
    assert complete(model, []) == []


def test_samples_depend_on_their_seed_and_not_on_the_batch_or_the_order(model):
    together = complete(model, max_new_tokens=24, **WARM)
    backwards = complete(model, REQUESTS[::-1], batch_size=5, max_new_tokens=24, **WARM)
    assert together == backwards[::-1]
    others = [Request(request.prompt, request.seed + 1) for request in REQUESTS]
    assert sum(a != b for a, b in zip(together, complete(model, others, max_new_tokens=24, **WARM), strict=True)) > 3


def test_the_text_is_that_of_transformers_generate(model, greedy):
    for request, completion in zip(REQUESTS[:4], greedy, strict=False):
        ids = torch.tensor([request.prompt])
        raw = model.generate(ids, max_new_tokens=64, eos_token_id=END_OF_TEXT, do_sample=False)
        assert completion.text == TOKENIZER.decode(raw[0, ids.shape[1] :], skip_special_tokens=True)


def test_continuous_batching_gives_the_same_greedy_texts_and_cannot_sample(model, greedy):
    assert complete(model, batching="continuous") == greedy
    with pytest.raises(UserError, match="seed for each sample"):
        complete(model, batching="continuous", temperature=0.7)


def test_rows_that_have_ended_leave_the_batch(model, monkeypatch):
    sizes: list[int] = []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda *args, **inputs: sizes.append(len(inputs["input_ids"])) or forward(*args, **inputs)
    )
    # the engine reads the names of the arguments from the signature
    monkeypatch.setattr(
        local_module.inspect, "signature", lambda _: local_module.inspect.Signature.from_callable(forward)
    )
    complete(model, max_new_tokens=128)
    assert sizes[0] == 12 and sizes[-1] < 6 and sizes == sorted(sizes, reverse=True)


def test_a_mixture_of_a_model_with_itself_generates_as_the_model_does(model, greedy):
    mixture = MixtureForCausalLM.from_pair(model, load_model(locate_model("embedded:base"), precision="fp32"))
    assert complete(mixture, REQUESTS[:4], batch_size=3) == greedy[:4]


def test_a_completion_says_whether_the_model_or_the_budget_ended_it_and_counts_its_tokens(model):
    full, cut = complete(model, max_new_tokens=128), complete(model, max_new_tokens=42)
    assert {completion.finish for completion in full} == {"stop"}
    assert {42} < {completion.tokens for completion in full}, "some end just within the smaller budget, some do not"
    for whole, part in zip(full, cut, strict=True):
        assert whole.tokens == len(TOKENIZER(whole.text)["input_ids"]) + 1  # the end counts
        assert part == whole if whole.tokens <= 42 else (part.tokens, part.finish) == (42, "length")
        assert whole.text.startswith(part.text)


def test_text_holds_no_special_tokens_even_where_the_model_continues_after_one(model):
    texts = [completion.text for completion in complete(model, REQUESTS[:3], max_new_tokens=128, stop=END_OF_TURN)]
    inputs = TOKENIZER(PROMPTS[0], return_tensors="pt", return_token_type_ids=False)
    raw = model.generate(**inputs, max_new_tokens=128, eos_token_id=END_OF_TURN, do_sample=False)
    assert END_OF_TEXT in raw[0].tolist(), "otherwise this test shows nothing"
    assert not any("<|" in text for text in texts)


@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_settings_in_the_generation_config_do_not_change_the_greedy_text(model, batching, greedy):
    model.generation_config.update(
        **{"repetition_penalty": 5.0, "num_beams": 4, "no_repeat_ngram_size": 2, "do_sample": True},
        **{"temperature": 5.0, "min_new_tokens": 64, "suppress_tokens": list(range(20, 200))},
    )
    assert complete(model, REQUESTS[:6], batching=batching) == greedy[:6]


def test_a_prompt_and_budget_beyond_the_models_positions_raise_an_error(model):
    room = model.config.max_position_embeddings
    with pytest.raises(UserError, match=rf"{room} positions; lower max_new_tokens"):
        complete(model, max_new_tokens=room)


def test_logits_that_are_not_numbers_are_an_error_and_not_a_text(model):
    model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="NaN logits"):
        complete(model)


def test_a_batch_that_does_not_fit_is_tried_again_in_halves_and_loses_nothing(model, greedy, monkeypatch):
    forward = local_module.written_rows
    tried: list[int] = []

    def tight(model, requests, sampling):
        tried.append(len(requests))
        if len(requests) > 3:
            yield from forward(model, requests[:1], sampling)
            raise torch.OutOfMemoryError("pretend")
        yield from forward(model, requests, sampling)

    monkeypatch.setattr(local_module, "written_rows", tight)
    assert complete(model) == greedy
    assert tried[:3] == [12, 6, 3]


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_probabilities_of_the_kept_tokens(temperature, top_p):
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0, -1.0]])
    uniform = (torch.arange(20_000) + 0.5) / 20_000
    tokens = choose(logits.expand(20_000, -1), uniform, Sampling(1, (), temperature, top_p))
    p = np.exp(logits[0].double().numpy() / temperature)
    p /= p.sum()
    order = np.argsort(-p)
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1]
    want = np.zeros(5)
    want[kept] = p[kept] / p[kept].sum()
    np.testing.assert_allclose(np.bincount(tokens, minlength=5) / 20_000, want, atol=2e-4)


@pytest.mark.parametrize(
    "top_k, top_p, kept", [(2, 1.0, [1, 2]), (3, 0.725, [1]), (4, 0.725, [1, 2]), (9, 1.0, [1, 2, 0, 3])]
)
def test_only_the_most_probable_tokens_are_drawn_and_top_p_is_of_what_they_have(top_k, top_p, kept):
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    uniform = (torch.arange(20_000) + 0.5) / 20_000
    tokens = choose(logits.expand(20_000, -1), uniform, Sampling(1, (), 0.8, top_p, top_k))
    want = np.zeros(4)
    want[kept] = np.exp(logits[0].double().numpy()[kept] / 0.8)
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / 20_000, want / want.sum(), atol=2e-4)


def test_tokens_as_probable_as_the_last_that_is_kept_are_kept_too():
    uniform = (torch.arange(30) + 0.5) / 30
    tokens = choose(torch.tensor([[1.0, 1.0, 1.0, 0.0]]).expand(30, -1), uniform, Sampling(1, (), 1.0, top_k=1))
    assert sorted(set(tokens.tolist())) == [0, 1, 2]


def test_a_flat_distribution_over_more_tokens_than_are_looked_at_first_is_sorted_whole():
    logits = torch.zeros(1, 5000)
    uniform = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    tokens = choose(logits.expand(1000, -1), uniform, Sampling(1, (), 1.0, 0.9))
    assert len(set(tokens.tolist())) > 800


@pytest.mark.parametrize("sampling", [{"temperature": 1e-38}, {"temperature": 1.0, "top_p": 1e-300}])
def test_extremes_take_the_most_probable_token(sampling):
    logits = torch.tensor([[1.0, 30.0, 2.0, -5.0]])
    assert choose(logits.expand(3, -1), torch.tensor([0.0, 0.5, 1 - 2**-24]), Sampling(1, (), **sampling)).eq(1).all()


@pytest.mark.parametrize("family", ["lfm2", "gemma3"])
def test_hybrid_and_sliding_window_models_give_the_same_texts_in_any_batch(family):
    model = hybrid() if family == "lfm2" else tiny_model("gemma3")
    requests = [Request([3 + (7 * row + place) % 20 for place in range(3 + 4 * row)]) for row in range(6)]
    found = []
    for size in (1, 4, 6):
        answers: dict[int, Completion] = {}
        engine = LocalEngine(model, TOKENIZER, size, "static")
        generate(engine, requests, Sampling(12, (5, 9)), answers.update)
        found.append([answers[row] for row in range(6)])
    assert found[0] == found[1] == found[2]


def hybrid():
    """Two layers with a state of their own and one with attention."""
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        full_attn_idxs=[1],
    )
    return Lfm2ForCausalLM(config).eval()


def test_continuous_batching_is_chosen_only_where_flash_attention_runs(model):
    assert not LocalEngine(model, TOKENIZER).goes_continuously(Sampling(1, ()))


def test_a_weight_of_zero_is_never_drawn():
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    ends = torch.tensor([0.0, 0.49, 0.5, 0.9999999])
    assert drawn(weights.expand(4, -1), ends).tolist() == [1, 1, 3, 3]


def test_an_engine_that_leaves_a_request_out_or_answers_it_twice_is_an_error():
    class Careless:
        def __init__(self, rows):
            self.rows = rows

        def complete(self, requests, sampling, on_done):
            for row in self.rows:
                on_done({row: Completion("x", 1, "stop")})

    with pytest.raises(UserError, match="1 of 3 requests got no completion"):
        generate(Careless([0, 2]), REQUESTS[:3], Sampling(1, ()), lambda done: None)
    with pytest.raises(RuntimeError, match="twice"):
        generate(Careless([0, 0]), REQUESTS[:3], Sampling(1, ()), lambda done: None)


def test_a_batch_is_as_large_as_memory_holds(model, monkeypatch):
    config = model.config
    token = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim  # keys and values, fp32
    monkeypatch.setattr(local_module.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 1, "SC_AVPHYS_PAGES": 10**6}[name])
    assert fitting_batch(model, 50) == int(0.6e6) // (50 * token)
    assert fitting_batch(model, 10**6) == 1
    assert fitting_batch(model, 1) == 64
