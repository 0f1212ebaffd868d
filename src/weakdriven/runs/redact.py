"""Keeps secrets out of what is printed or written down: tokens, passwords in addresses, keys in the environment.

A secret is known by its form (hf_..., sk-..., AKIA...), by its place (user:password@, Authorization, ?token=), or by
being the value of a variable of the environment that is named like one. What stays is its kind, so that a reader can
tell which one was used wrongly: `hf_…`.
"""

import logging
import math
import os
import re
import sys
import traceback
from collections import Counter
from types import TracebackType
from typing import Any

GONE = "…"
FORMS: list[tuple[str, re.Pattern[str]]] = [
    ("hf_", re.compile(r"(?<![A-Za-z0-9])(hf_)[A-Za-z0-9]{20,}")),
    ("sk-", re.compile(r"(?<![A-Za-z0-9])(sk-)[A-Za-z0-9]{32,}")),
    ("sk-", re.compile(r"(?<![A-Za-z0-9])(sk-(?:proj|ant|svcacct|admin|or)-)(?=[\w-]{0,100}\d)[\w-]{20,}")),
    ("gh", re.compile(r"(?<![A-Za-z0-9])(gh[pousr]_)[A-Za-z0-9]{30,}")),
    ("github_pat_", re.compile(r"(?<![A-Za-z0-9])(github_pat_)[A-Za-z0-9_]{30,}")),
    ("glpat-", re.compile(r"(?<![A-Za-z0-9])(glpat-)[\w-]{20,}")),
    ("xox", re.compile(r"(?<![A-Za-z0-9])(xox[abprs]-)[A-Za-z0-9-]{20,}")),
    ("AKIA", re.compile(r"(?<![A-Za-z0-9])(AKIA)[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("ASIA", re.compile(r"(?<![A-Za-z0-9])(ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("AIza", re.compile(r"(?<![A-Za-z0-9])(AIza)[\w-]{35}(?![\w-])")),
    (
        "PRIVATE KEY-",
        re.compile(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?:(?!-----END)[A-Za-z0-9+/=\s:,\\-]){1,20000}"),
    ),
    ("://", re.compile(r"(://)[^\s/@:\"'<>]{0,200}:[^\s/@\"'<>]{1,500}(?=@)")),
    (
        "uthorization",
        re.compile(
            r"(?i)(authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?:bearer|basic|token)\s+|(?=[^\s\"',})]{0,200}\d)))"
            r"[^\s\\\"',})]{6,}"
        ),
    ),
    ("earer ", re.compile(r"(?i)(\bbearer )(?=[A-Za-z0-9._~+/-]{0,200}\d)[A-Za-z0-9._~+/-]{16,}=*")),
    (
        "=",
        re.compile(
            r"(?i)([?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|"
            r"(?:access_|auth_|hf_)?token|api_?key|client_secret|secret|passw(?:or)?d)=)[^&\s\\\"'<>#()]+"
        ),
    ),
]
"""A piece of text that a secret of this form cannot do without, and the form: what its first group holds stays."""
NAMED = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$")
SHORTEST, LONG = 8, 20


def masked(text: str) -> str:
    """The text with every secret in it replaced by what kind it was.

    >>> masked("401 for hf_" + "aB3" * 11 + " at https://me:pass@host/x?token=abc&y=1")
    '401 for hf_… at https://…@host/x?token=…&y=1'
    >>> masked("sk-learn reads data/task-hf_model.json")
    'sk-learn reads data/task-hf_model.json'
    """
    for piece, form in FORMS:
        if piece in text or (piece == "uthorization" and "UTHORIZATION" in text):
            text = form.sub(rf"\g<1>{GONE}", text)
    for name, value in secrets_around().items():
        if value in text:
            text = text.replace(value, f"${name}{GONE}")
    return text


def masked_values(value: Any) -> Any:
    """What JSON can hold, with every text in it masked; masking what is written would take its quotes for the secret's.

    >>> masked_values({"why": ["https://host/?token=abc"], "n": 1})
    {'why': ['https://host/?token=…'], 'n': 1}
    """
    if isinstance(value, dict):
        return {key: masked_values(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(one) for one in value]
    return masked(value) if isinstance(value, str) else value


def holds_secret(text: str) -> bool:
    return masked(text) != text


def secrets_around() -> dict[str, str]:
    """Variables of the environment that hold a secret; the longest values first, since one may hold another."""
    found = {name: value for name, value in os.environ.items() if NAMED.search(name.upper()) and is_random(value)}
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def is_random(value: str) -> bool:
    """Whether a value looks drawn rather than named: masking `production` everywhere would garble every page.

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
    spread = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())
    return (sum(kinds) > 1 or len(value) >= LONG) and spread > 2.2


def mask_output() -> None:
    """From here on tracebacks of this process, and what libraries log, are printed masked."""
    if sys.excepthook is not _print_masked:
        sys.excepthook = _print_masked
        logging.setLogRecordFactory(_MaskedRecord)


def _print_masked(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(masked("".join(traceback.format_exception(kind, error, trace))))


class _MaskedRecord(logging.LogRecord):
    def getMessage(self) -> str:
        return masked(super().getMessage())
