"""Redact secrets in what this process prints and logs: tokens, passwords in URLs, keys from the environment.

A secret is recognized by its form (hf_..., sk-..., AKIA...), by its context (user:password@, Authorization, ?token=),
or as the value of an environment variable with a name like HF_TOKEN. Its prefix is kept, so that a reader sees which
secret was used: `hf_…`. Files are not redacted; SECURITY.md lists the few places that keep secrets out of them."""

import logging
import math
import os
import re
import sys
from collections import Counter
from typing import Any, TextIO

ELLIPSIS = "…"
FORMS = [
    # tokens by their prefix: Hugging Face, GitHub, AWS, OpenAI and others, GitLab, Slack, Google
    r"(?<![A-Za-z0-9])(hf_|gh[pousr]_|AKIA|ASIA|sk-(?=[A-Za-z0-9]{32}))[A-Za-z0-9]{16,}",
    r"(?<![A-Za-z0-9])(github_pat_|glpat-|xox[abprs]-|AIza|sk-(?:proj|ant|svcacct|admin|or)-)"
    r"(?=[\w-]{0,100}\d)[\w-]{20,}",
    r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?:(?!-----END)[A-Za-z0-9+/=\s:,\\-]){1,20000}",
    r"(://)[^\s/@:\"'<>]{0,200}:[^\s/@\"'<>]{1,500}(?=@)",
    r"(?i)(authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?:bearer|basic|token)\s+|(?=[^\s\"',})]{0,200}\d)))"
    r"[^\s\\\"',})]{6,}",
    r"(?i)(\bbearer )(?=[A-Za-z0-9._~+/-]{0,200}\d)[A-Za-z0-9._~+/-]{16,}=*",
    r"(?i)([?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|"
    r"(?:access_|auth_|hf_)?token|api_?key|client_secret|secret|passw(?:or)?d)=)[^&\s\\\"'<>#()]+",
]
"""Patterns of secrets; the first group is kept."""
NAMED = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$")
SHORTEST, LONG = 8, 20


def redact(text: str) -> str:
    """Replace each secret in a text by its prefix.

    >>> redact("401 for hf_" + "aB3" * 11 + " at https://me:pass@host/x?token=abc&y=1")
    '401 for hf_… at https://…@host/x?token=…&y=1'
    >>> redact("sk-learn reads data/task-hf_model.json")
    'sk-learn reads data/task-hf_model.json'
    """
    for form in FORMS:
        text = re.sub(form, rf"\g<1>{ELLIPSIS}", text)
    for name, value in environment_secrets().items():
        text = text.replace(value, f"${name}{ELLIPSIS}")
    return text


def holds_secret(text: str) -> bool:
    return redact(text) != text


def without_login(address: str) -> str:
    """Return a URL without its password and query, for names, notes and files.

    >>> without_login("s3://me:pass@bucket/run/?token=abc")
    's3://bucket/run/'
    """
    return re.sub(r"://[^/@:]*:[^/@]+@", "://", address, count=1).partition("?")[0]


def environment_secrets() -> dict[str, str]:
    """Return the environment variables that hold a secret; the longest values first, since one may contain another."""
    found = {name: value for name, value in os.environ.items() if NAMED.search(name.upper()) and is_random(value)}
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def is_random(value: str) -> bool:
    """Return whether a value looks generated; redacting words such as `production` would garble the output.

    >>> is_random("s3cr3t-Pa55"), is_random("0123456789abcdef0123456789abcdef01234567")
    (True, True)
    >>> is_random("production"), is_random("/etc/keys/mine.pem"), is_random("aaaaaaaa1"), is_random("12345678")
    (False, False, False, False)
    """
    if len(value) < SHORTEST or any(character.isspace() for character in value) or value.isdecimal():
        return False
    if value.startswith(("/", "~", "./", "../")) or (value.isalpha() and len(value) < LONG):
        return False
    kinds = [any(test(one) for one in value) for test in (str.islower, str.isupper, str.isdigit)]
    entropy = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return (sum(kinds) > 1 or len(value) >= LONG) and entropy > 2.2


class RedactingStream:
    """A text stream that redacts what is written to it."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(redact(text))

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_output() -> None:
    """Redact everything that this process prints to stdout and stderr from now on, and every log record."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, RedactingStream):
            setattr(sys, name, RedactingStream(stream))
    logging.setLogRecordFactory(_RedactedRecord)


class _RedactedRecord(logging.LogRecord):
    def getMessage(self) -> str:
        return redact(super().getMessage())
