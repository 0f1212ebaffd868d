"""<think> and <answer> markers go, what stands between them stays."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakdriven.data.structure import strip_tags

PARTS = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    '<answer type="final">',
    "```",
    "```python",
    "`",
    "\n",
    "\n\n",
    " ",
    "    ",
    "x = 1",
    "<thi",
    "nk>",
    "a<b",
    ">",
    "\\boxed{7}",
]
MARKED = st.lists(st.sampled_from(PARTS), max_size=25).map("".join)


@pytest.mark.parametrize(
    "text, bare",
    [
        ("<think>a</think><answer>b</answer>", "a\n\nb"),
        ("<think>\na\n</think>\n\n<answer>\nb\n</answer>\n", "a\n\nb"),
        ("<think> a </think> <answer> b </answer>", "a\n\nb"),
        ("<think>a</think>b", "a\n\nb"),
        ("before <answer>b</answer> after", "before\n\nb\n\nafter"),
        ("<think></think><answer>b</answer>", "b"),
        ("<think></think>", ""),
        ("<think>first\n\nsecond</think><answer>so \\boxed{2}</answer>", "first\n\nsecond\n\nso \\boxed{2}"),
    ],
)
def test_the_reasoning_and_the_answer_are_kept_one_blank_line_apart(text, bare):
    assert strip_tags(text) == bare


@pytest.mark.parametrize(
    "text, bare",
    [
        ("<think>a", "a"),
        ("a</think>b", "a\n\nb"),
        ("<think>a<answer>b", "a\n\nb"),
        ("</answer>", ""),
        ("<think>a <think>b</think> c</think>d", "a\n\nb\n\nc\n\nd"),
        ("<think>a<answer>b</answer></think>c", "a\n\nb\n\nc"),
    ],
)
def test_unclosed_stray_and_nested_markers_go_too(text, bare):
    assert strip_tags(text) == bare


@pytest.mark.parametrize(
    "marker", ['<answer type="final">', "<answer type='final' n=1>", "<think lang = en >", "<think >", "<answer/>"]
)
def test_markers_with_attributes_go_too(marker):
    assert strip_tags(f"a{marker}b") == "a\n\nb"


@pytest.mark.parametrize(
    "text", ["<thinking>a</thinking>", "<answers>", "<Think>", "a <think b> c", "x<answer", "< think >", "<p>a</p>"]
)
def test_what_only_looks_like_a_marker_is_left(text):
    assert strip_tags(text) == text


@pytest.mark.parametrize("text", ["", "  a  ", "\n\na\n", "a\n\n\n\nb", "no markers\n```\ncode\n```\n"])
def test_a_text_without_markers_is_returned_as_it_is(text):
    assert strip_tags(text) == text


CODE = "```python\nprint('<answer>')\n# </think>\n```"


@pytest.mark.parametrize(
    "text, bare",
    [
        (f"<think>a</think><answer>\n{CODE}\n</answer>", f"a\n\n{CODE}"),
        (f"<think>a</think><answer>{CODE}</answer>", f"a\n\n{CODE}"),
        (f"<think>\n{CODE}\n</think>b", f"{CODE}\n\nb"),
        ("<think>It goes into `<answer>`.</think>5", "It goes into `<answer>`.\n\n5"),
        ("<answer>\n````\n```\n<think>\n```\n````\n</answer>", "````\n```\n<think>\n```\n````"),
        ("<answer>\r\n```\r\n<think>\r\n```\r\n</answer>", "```\r\n<think>\r\n```"),
    ],
    ids=["fenced answer", "fence beside the marker", "fence in the reasoning", "span", "longer fence", "CRLF"],
)
def test_code_keeps_its_text(text, bare):
    assert strip_tags(text) == bare


@pytest.mark.parametrize(
    "text, bare",
    [
        ("<think>```\nopen</think><answer>b</answer>", "```\nopen\n\nb"),
        ("<think>\n```\nopen</think>\n<answer>\n```python\nx\n```\n</answer>", "```\nopen\n\n```python\nx\n```"),
        ("<think>a ` b</think>c", "a ` b\n\nc"),
    ],
    ids=["to the end", "before a block with a language", "backtick"],
)
def test_code_that_is_never_closed_hides_no_marker(text, bare):
    assert strip_tags(text) == bare


def test_indentation_of_a_first_line_of_its_own_is_kept():
    assert strip_tags("<answer>\n\n    return 1\n</answer>") == "    return 1"


@settings(deadline=None)
@given(MARKED)
def test_stripping_again_changes_nothing(text):
    once = strip_tags(text)
    assert strip_tags(once) == once


@settings(deadline=None)
@given(MARKED)
def test_nothing_but_markers_and_blanks_is_lost(text):
    marker = r"</?(?:think|answer)(?: type=\"final\")?>"
    kept, given = (re.sub(marker, "", part) for part in (strip_tags(text), text))
    assert re.sub(r"\s", "", kept) == re.sub(r"\s", "", given)


@settings(deadline=None)
@given(MARKED)
def test_without_code_no_marker_is_left(text):
    text = text.replace("`", "")
    assert not re.search(r"</?(think|answer)>", strip_tags(text))


@pytest.mark.parametrize("part", ["```\n", "```", "`", "<think a=", "<think>", "\n ", "```python\n", "x```\n<think>"])
def test_long_texts_take_no_time(part):
    start = time.process_time()  # not of a machine that is busy with other things
    strip_tags(part * 5_000)
    assert time.process_time() - start < 5
