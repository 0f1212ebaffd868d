"""Generate completions of prompts, in process or over HTTP, behind one function."""

from weakdriven.eval.generate.requests import Completion, Engine, Request, Sampling, generate, request_seed

__all__ = ["Completion", "Engine", "Request", "Sampling", "generate", "request_seed"]
