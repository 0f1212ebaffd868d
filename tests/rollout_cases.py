"""A model that solves some of the demo's problems, and a scripted generation engine."""

import pytest
import torch

from helpers import demo_examples
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import tokenize
from weakdriven.eval.generate.requests import Completion
from weakdriven.models.folder import open_model
from weakdriven.models.load import load_tokenizer
from weakdriven.stages.context import Context


@pytest.fixture(scope="session")
def learner(once):
    """Train the embedded model on eight problems until some of its samples are right and some wrong."""
    return once("learner", train_learner)[0]


def train_learner(folder):
    branch = open_model("embedded:base")
    tokenizer, model = load_tokenizer(branch.model), branch.load("fp32").train()
    renderer = Renderer(tokenizer, "math", "plain")
    rows = [tokenize(example, renderer) for example in demo_examples(8)]
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])
    labels = torch.tensor([row["labels"] + [-100] * (width - len(row["labels"])) for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(40):
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Says:
    """An engine that answers each request with `text`'s text or completion, and stops at `limit`."""

    def __init__(self, text, limit=None):
        self.text, self.limit, self.asked = text, limit, 0

    def complete(self, requests, sampling, on_done):
        self.asked += len(requests)
        for place, request in list(enumerate(requests))[: self.limit]:
            said = self.text(request)
            on_done({place: said if isinstance(said, Completion) else Completion(said, 5, "stop")})


@pytest.fixture
def says(monkeypatch):
    """Replace the model's own engine."""

    def put(text, limit=None):
        engine = Says(text, limit)
        monkeypatch.setattr(Context, "engine", lambda self, model, longest=None: engine)
        return engine

    return put
