"""WMSS in one file of plain PyTorch and transformers, to be read from top to bottom.

    python examples/wmss_minimal.py

WMSS improves a fine-tuned model with the help of an earlier, weaker version of it. It draws the examples on which the
strong model is uncertain or the two models differ (WD-DS), then trains both on their mixed logits and keeps the strong
one (WD-JT).
Equations, sections and Algorithm 1 are those of "Weak-Driven Learning: How Weak Agents Make Strong Agents Stronger"
(arXiv 2602.08222).

Only the small model and the word problems come from weakdriven. `weakdriven run demo` computes the same, and a test
compares the two. The demo also trains two SFT controls and a variant of WMSS: docs/start/demo.md.

N = examples, B = examples of a batch, L = tokens of its longest example, V = vocabulary.
"""

import argparse
import copy
import re

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup

from weakdriven.data.demo import demo_problems
from weakdriven.models.load import EMBEDDED, locate_model

ROUNDS = 1  # K of Algorithm 1
STRONG_WEIGHT = 0.5  # lambda of Eq. 5
CONSOLIDATION, DIFFICULTY, REPAIR = 0.1, 0.8, 0.1  # alpha, beta, gamma of Eq. 9
EPOCHS, LEARNING_RATE = 3, 2e-3  # of SFT
JOINT_LEARNING_RATE = 5e-4  # of WD-JT, one epoch a round
BATCH_SIZE, WARMUP_RATIO, MAX_GRAD_NORM = 4, 0.1, 1.0
TRAIN_PROBLEMS = 1600
SEED = 42
IGNORE = -100  # label of a token that is not supervised


# 1. The data: tokens of prompts and completions; only completions are supervised


def load_examples(tokenizer, count):
    """Load the demo's first `count` training problems as pairs of prompt tokens and completion tokens."""
    problems = demo_problems("train")[:count]
    solutions = [problem.solution + tokenizer.eos_token for problem in problems]
    completions = [tokenizer.encode(text, add_special_tokens=False) for text in solutions]
    return [(prompt_tokens(tokenizer, problem), done) for problem, done in zip(problems, completions, strict=True)]


def prompt_tokens(tokenizer, problem):
    messages = [{"role": "user", "content": problem.question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def collate(examples):
    """Pad a batch to one length, and return token ids, attention mask and labels."""
    ids = [torch.tensor(prompt + completion) for prompt, completion in examples]
    labels = [torch.tensor([IGNORE] * len(prompt) + completion) for prompt, completion in examples]
    mask_BL = pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    return pad_sequence(ids, batch_first=True), mask_BL, pad_sequence(labels, batch_first=True, padding_value=IGNORE)


# 2. WD-JT (Sec. 4.1), and SFT as the same training with one model


def train(models, weights, examples, phase, epochs, learning_rate):
    """Train all `models` on the weighted sum of their logits; return the loss of each step.

    With one model of weight 1, this is SFT (Eq. 1). With a strong and a weak model of weights lambda and 1 - lambda, it
    is WD-JT.
    """
    batch_size = min(BATCH_SIZE, len(examples))
    kept = len(examples) // batch_size * batch_size  # whole batches only
    shuffles = [np.random.default_rng([SEED, phase, epoch]).permutation(len(examples)) for epoch in range(epochs)]
    batches = np.concatenate([shuffle[:kept] for shuffle in shuffles]).reshape(-1, batch_size)
    parameters = [parameter for model in models for parameter in model.train().parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, int(WARMUP_RATIO * len(batches)), len(batches))
    losses = []
    for rows in batches:
        ids_BL, mask_BL, labels_BL = collate([examples[row] for row in rows])
        logits = [model(input_ids=ids_BL, attention_mask=mask_BL).logits for model in models]
        mixed_BLV = sum(weight * logits_BLV for weight, logits_BLV in zip(weights, logits, strict=True))  # Eq. 5
        # Eq. 6: the logits at a position predict the next token; the mean is over all supervised tokens of the step
        loss = F.cross_entropy(mixed_BLV[:, :-1].flatten(0, 1), labels_BL[:, 1:].flatten(), ignore_index=IGNORE)
        loss.backward()  # gradient of a model's logits: its weight * (P_mix - onehot(y)) (Sec. 5)
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)  # one norm over all models
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# 3. WD-DS (Sec. 4.2)


@torch.no_grad()
def entropies(model, examples):
    """Compute the mean entropy of the model's predictions over each example's completion tokens (Eq. 7)."""
    model.eval()
    entropy_N = []
    for begin in range(0, len(examples), 64):
        ids_BL, mask_BL, labels_BL = collate(examples[begin : begin + 64])
        log_p_BLV = model(input_ids=ids_BL, attention_mask=mask_BL).logits[:, :-1].log_softmax(-1)
        entropy_BL = -(log_p_BLV.exp() * log_p_BLV).sum(-1)
        supervised_BL = labels_BL[:, 1:] != IGNORE
        entropy_N += ((entropy_BL * supervised_BL).sum(1) / supervised_BL.sum(1)).tolist()
    return np.array(entropy_N)


def draw_active(weak_entropy_N, strong_entropy_N, round_number):
    """Draw the active set: as many draws with replacement as there are examples, without duplicates."""
    rise_N = strong_entropy_N - weak_entropy_N  # Eq. 8
    weight_N = (  # Eq. 9
        CONSOLIDATION * np.maximum(-rise_N, 0) + DIFFICULTY * strong_entropy_N + REPAIR * np.maximum(rise_N, 0)
    )
    rng, count = np.random.default_rng([SEED, round_number]), len(weight_N)
    return np.unique(rng.choice(count, size=count, p=weight_N / weight_N.sum()))


# 4. Algorithm 1


def wmss(base, examples):
    """Return M0, M1, ..., M_{K+1}, the active set of each round, and the losses of each phase."""
    models, actives = [base, copy.deepcopy(base)], []
    losses = [train([models[1]], [1.0], examples, 0, EPOCHS, LEARNING_RATE)]  # M1: SFT of M0
    for round_number in range(1, ROUNDS + 1):
        weak, strong = copy.deepcopy(models[-2]), copy.deepcopy(models[-1])  # M_{t-1} and M_t (Eq. 4)
        active = draw_active(entropies(weak, examples), entropies(strong, examples), round_number)
        chosen = [examples[row] for row in active]
        weights = [STRONG_WEIGHT, 1 - STRONG_WEIGHT]
        losses.append(train([strong, weak], weights, chosen, round_number, 1, JOINT_LEARNING_RATE))
        models.append(strong)  # M_{t+1}; the weak model was trained too, and is discarded
        actives.append(active)
    return models, actives, losses


# 5. How good the models are


@torch.no_grad()
def count_correct(model, tokenizer, problems):
    """Count the problems whose greedy completion has the right number in \\boxed{}."""
    model.eval()
    prompts = [torch.tensor(prompt_tokens(tokenizer, problem)) for problem in problems]
    ids_BL = pad_sequence(prompts, batch_first=True, padding_side="left")
    mask_BL = pad_sequence([torch.ones_like(one) for one in prompts], batch_first=True, padding_side="left")
    output_BL = model.generate(input_ids=ids_BL, attention_mask=mask_BL, max_new_tokens=96, do_sample=False)
    texts = tokenizer.batch_decode(output_BL[:, ids_BL.shape[1] :], skip_special_tokens=True)
    found = [re.search(r"\\boxed\{(\d+)\}", text) for text in texts]
    return sum(one is not None and int(one[1]) == problem.answer for one, problem in zip(found, problems, strict=True))


def main():
    parser = argparse.ArgumentParser(description="WMSS on the demo's word problems.")
    parser.add_argument("--train", type=int, default=TRAIN_PROBLEMS, help="training problems, at most 3200")
    parser.add_argument("--test", type=int, default=128, help="test problems, at most 512")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(locate_model(EMBEDDED))
    base = AutoModelForCausalLM.from_pretrained(locate_model(EMBEDDED))
    models, actives, losses = wmss(base, load_examples(tokenizer, options.train))
    for number, active in enumerate(actives, start=1):
        print(f"round {number}: {len(active)} of {options.train} examples are in the active set")
    for number, each in enumerate(losses, start=1):
        print(
            f"training of M{number}: {len(each)} steps, loss {each[0]:.3f} at the first and {each[-1]:.3f} at the last"
        )
    problems = demo_problems("test")[: options.test]
    for number, model in enumerate(models):
        print(f"M{number}: {count_correct(model, tokenizer, problems)} of {len(problems)} test problems are correct")


if __name__ == "__main__":
    main()
