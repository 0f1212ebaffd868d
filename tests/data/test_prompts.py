"""System prompts and chat templates: the text that a model sees."""

import pytest

from helpers import embedded_tokenizer
from weakdriven.data.prompts import SYSTEM_PROMPTS, Renderer, give_chat_template
from weakdriven.errors import UserError

ASK = [{"role": "user", "content": "1+1?"}]


def plain(template=None):
    tokenizer = embedded_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    return Renderer(tokenizer, "math", "plain")


@pytest.mark.parametrize("domain, style", sorted(SYSTEM_PROMPTS))
def test_domain_and_style_choose_the_system_prompt(domain, style):
    system = SYSTEM_PROMPTS[domain, style]
    assert Renderer(embedded_tokenizer(), domain, style).prompt(ASK) == (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_every_domain_has_a_prompt_of_its_own_in_both_styles():
    assert len(set(SYSTEM_PROMPTS.values())) == 6
    assert all(("<think>" in text) == (style == "tagged") for (_, style), text in SYSTEM_PROMPTS.items())


@pytest.mark.parametrize("domain", ["math", "code", "logic"])
def test_plain_style_adds_no_system_prompt(domain):
    prompt = Renderer(embedded_tokenizer(), domain, "plain").prompt(ASK)
    assert prompt == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("style", ["tagged", "tag-free", "plain"])
def test_a_system_prompt_of_the_row_is_kept(style):
    prompt = Renderer(embedded_tokenizer(), "math", style).prompt([{"role": "system", "content": "Mine."}, *ASK])
    assert prompt.startswith("<|im_start|>system\nMine.<|im_end|>\n<|im_start|>user\n1+1?")
    assert prompt.count("<|im_start|>system") == 1


def test_a_system_prompt_of_ones_own_is_for_messages_without_one():
    renderer = Renderer(embedded_tokenizer(), "math", "plain", "Ours.")
    assert renderer.prompt(ASK).startswith("<|im_start|>system\nOurs.<|im_end|>\n<|im_start|>user\n1+1?")
    own = renderer.prompt([{"role": "system", "content": "Mine."}, *ASK])
    assert "Mine." in own and "Ours." not in own
    renderer.tokenizer.chat_template = NO_SYSTEM
    with pytest.raises(UserError, match=r"cannot be used with data\.system_prompt"):
        renderer.check()


def test_the_messages_of_a_row_are_left_as_they_were():
    messages = list(ASK)
    Renderer(embedded_tokenizer(), "math", "tagged").prompt(messages)
    assert messages == ASK


@pytest.mark.parametrize(
    "template, end",
    [
        (None, "<|im_end|>"),
        ("{% for m in messages %}[{{ m['content'] }}]<|im_start|>\n\n{% endfor %}", "]<|im_start|>"),
        ("{% for m in messages %}{{ m['content'] }}<|endoftext|><|im_end|>{% endfor %}", "<|endoftext|>"),
    ],
)
def test_the_end_of_turn_is_what_the_template_writes_after_a_reply_up_to_its_first_special_token(template, end):
    assert plain(template).end_of_turn == end


@pytest.mark.parametrize("after", ["", "]\n\n", "\n\n### User:"])
def test_a_template_without_a_special_token_after_the_reply_ends_turns_with_the_end_of_text(after):
    renderer = plain("{% for m in messages %}{{ m['content'] }}" + after + "{% endfor %}")
    assert (renderer.end_of_turn, renderer.stop_ids) == ("<|im_end|>", [2])


def test_generation_stops_at_the_end_of_turn_and_at_the_end_of_text():
    assert plain().stop_ids == [2]
    renderer = plain("{% for m in messages %}{{ m['content'] }}<|im_start|>{% endfor %}")
    assert renderer.stop_ids == [1, 2]


def test_a_template_that_leaves_out_the_reply_is_an_error():
    renderer = plain("{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}<|im_end|>{% endfor %}")
    for look in (lambda: renderer.end_of_turn, renderer.check):
        with pytest.raises(UserError, match="omits the assistant's reply"):
            look()


NO_SYSTEM = """{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role here') }}{% endif %}
{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"""


@pytest.mark.parametrize(
    "template, style, message",
    [
        ("{% for m in messages %}{{ m['content'] }}", "plain", "cannot be used with style 'plain': .*endfor"),
        (NO_SYSTEM, "tagged", "cannot be used with style 'tagged': no system role here"),
    ],
    ids=["syntax error", "no system role"],
)
def test_a_template_that_cannot_render_is_an_error_before_any_work(template, style, message):
    tokenizer = embedded_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=message):
        Renderer(tokenizer, "math", style).check()


@pytest.mark.parametrize("template", [None, NO_SYSTEM])
def test_a_template_that_renders_what_the_style_asks_for_passes_the_check(template):
    plain(template).check()


def test_a_tokenizer_keeps_its_own_template_unless_the_recipe_names_one():
    tokenizer = embedded_tokenizer()
    before = tokenizer.chat_template
    give_chat_template(tokenizer, None, "some/model")
    assert tokenizer.chat_template == before


def test_a_template_file_replaces_the_template(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}<{{ m['role'] }}>é {{ m['content'] }}{% endfor %}", encoding="utf-8")
    tokenizer = embedded_tokenizer()
    give_chat_template(tokenizer, str(file), "some/model")
    assert Renderer(tokenizer, "math", "plain").prompt(ASK) == "<user>é 1+1?"


@pytest.mark.parametrize("name", ["none.jinja", "folder.jinja", "binary.jinja"])
def test_a_template_that_is_neither_a_readable_file_nor_shipped_is_an_error(name, tmp_path):
    (tmp_path / "folder.jinja").mkdir()
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=rf"{name} is neither a readable file nor one of the shipped .*gemma"):
        give_chat_template(embedded_tokenizer(), str(tmp_path / name), "some/model")
