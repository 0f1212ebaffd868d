"""Rows of every layout become the same example; what cannot is an error that says where and what was expected."""

import pytest

from weakdriven.data.example import Example
from weakdriven.data.rows.layouts import as_example, detect, layout_name
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import as_item

ASK = [{"role": "user", "content": "1+1?"}]
SAID = {"role": "assistant", "content": "2"}
SYSTEM = {"role": "system", "content": "Be brief."}
GOOD = {"question": "1+1?", "solution": "2"}
ALPACA = {"instruction": "1+1?", "output": "2"}
HUMAN, GPT = {"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}
AM = {
    "messages": [
        {
            "role": "user",
            "content": "1+1?",
            "info": {"source": "openr1_math", "reference_answer": "2", "test_case": None, "think_content": None},
        },
        {
            "role": "assistant",
            "content": "<think>one more</think><answer>2</answer>",
            "info": {
                "source": "am-0309",
                "reference_answer": None,
                "test_case": None,
                "think_content": "one more",
                "answer_content": "2",
            },
        },
    ]
}

LAYOUTS = [
    ("messages", {"messages": [*ASK, SAID]}, ASK),
    ("messages", {"messages": [SYSTEM, *ASK, SAID]}, [SYSTEM, *ASK]),
    ("prompt/completion", {"prompt": "1+1?", "completion": "2"}, ASK),
    ("prompt/completion", {"prompt": ASK, "completion": "2"}, ASK),
    ("prompt/completion", {"prompt": [SYSTEM, *ASK], "completion": [SAID]}, [SYSTEM, *ASK]),
    ("question/solution", GOOD, ASK),
    ("question/solution", {"question": ASK, "solution": "2"}, ASK),
    ("ShareGPT", {"conversations": [HUMAN, GPT]}, ASK),
    ("ShareGPT", {"conversations": [{"from": "system", "value": "Be brief."}, HUMAN, GPT]}, [SYSTEM, *ASK]),
    ("ShareGPT", {"conversations": [HUMAN, GPT], "system": "Be brief."}, [SYSTEM, *ASK]),
    ("ShareGPT", {"conversations": [*ASK, SAID], "system": None}, ASK),
    ("Alpaca", ALPACA, ASK),
    ("Alpaca", {"instruction": "1+1?", "input": "", "output": "2"}, ASK),
    ("Alpaca", {"instruction": "1+1?", "input": None, "output": "2", "system": "Be brief."}, [SYSTEM, *ASK]),
    ("Alpaca", ALPACA | {"history": []}, ASK),
    ("Alpaca", ALPACA | {"history": None}, ASK),
]


@pytest.mark.parametrize("name, row, prompt", LAYOUTS)
def test_each_layout_is_detected_and_becomes_the_same_example(name, row, prompt):
    assert as_example(row, 4, "f") == Example("4", prompt, "2")
    found = detect([row, row])
    assert found.name == name and set(found.fields) == set(row)


def test_the_input_of_an_alpaca_row_follows_its_instruction():
    example = as_example({"instruction": "Add.", "input": "1, 1", "output": "2"}, 1, "f")
    assert example.prompt == [{"role": "user", "content": "Add.\n\n1, 1"}]


def test_the_history_of_an_alpaca_row_is_a_conversation_before_its_instruction():
    """As LLaMA-Factory writes and learns it: every answer is learned."""
    history = [["Hi", "Hello!"], ["Can you add?", "Yes."]]
    row = {"instruction": "Add.", "input": "1, 1", "output": "2", "system": "Be brief.", "history": history}
    roles = ["user", "assistant"]
    said = [{"role": role, "content": text} for pair in history for role, text in zip(roles, pair, strict=True)]
    asked = {"role": "user", "content": "Add.\n\n1, 1"}
    example = as_example(row, 1, "f")
    assert example == Example("1", [SYSTEM, *said, asked], "2", all_turns=True)
    assert example.replies() == ["Hello!", "Yes.", "2"]
    assert detect([row]).fields == ("instruction", "input", "system", "history", "output")


@pytest.mark.parametrize("history", ["Hi", [["Hi"]], [["Hi", 7]], [{"a": "b"}], [["a", "b", "c"]], {"a": "b"}], ids=str)
def test_a_history_that_is_no_list_of_pairs_is_an_error(history):
    with pytest.raises(UserError, match="f, row 3: expected history as a list of pairs, each a question"):
        as_example(ALPACA | {"history": history}, 3, "f")


def test_a_blank_answer_in_a_history_is_no_completion():
    row = ALPACA | {"history": [["Hi", " "]]}
    with pytest.raises(UserError, match="no completion to train on"):
        as_example(row, 1, "f")
    assert as_example(row, 1, "f", needs_completion=False).completion == ""


def test_an_am_row_keeps_reference_answer_and_source_and_drops_what_the_reply_holds_already():
    assert detect([AM]).name == "AM-DeepSeek-R1-Distilled"
    reply = AM["messages"][1]["content"]
    assert as_example(AM, 1, "f") == Example("1", ASK, reply, gold="2", source="openr1_math")


def test_an_am_row_keeps_its_tests():
    case = {"test_code": "assert f(1) == 2", "test_entry_point": "f"}
    asked = {**ASK[0], "info": {"source": "code", "reference_answer": "", "test_case": case}}
    example = as_example({"messages": [asked, SAID]}, 1, "f")
    assert (example.gold, example.meta) == (None, {"test_case": case})


def test_an_am_file_may_have_rows_without_info():
    plain = {"messages": [*ASK, SAID]}
    assert detect([AM, plain]).name == "AM-DeepSeek-R1-Distilled"
    detect([plain, AM])


@pytest.mark.parametrize("given, kept", [({"id": "a"}, "a"), ({"id": 0}, "0"), ({}, "4"), ({"id": None}, "4")])
def test_the_id_is_the_given_one_or_else_the_row_number(given, kept):
    assert as_example(GOOD | given, 4, "f").id == kept


@pytest.mark.parametrize("key", ["answer", "gold", "reference_answer"])
@pytest.mark.parametrize("value, kept", [("2", "2"), (0, "0"), (None, None)])
def test_the_gold_answer_is_kept_as_text(key, value, kept):
    example = as_example(GOOD | {key: value}, 1, "f")
    assert (example.gold, example.meta) == (kept, {})


def test_fields_without_a_meaning_of_their_own_are_kept_as_meta():
    row = GOOD | {"level": 3, "source": "x", "domain": "math", "id": "a", "answer": "2", "license": {"a": 1}}
    example = as_example(row, 1, "f")
    assert example == Example("a", ASK, "2", "2", "math", "x", {"level": 3, "license": {"a": 1}})
    assert as_example(GOOD | {"source": {"url": 1}}, 1, "f").meta == {"source": {"url": 1}}


CHOICE = {"id": "a", "question": " What is 2+2? ", "options": ["3", "4 ", "5", "6", "7"], "answer": "B"}
LOGIC = {"id": "a", "context": "All cats sleep.\n", "question": "What follows?", "options": list("wxyz"), "answer": "A"}
FUNCTION = {"id": "a", "prompt": "def f(x):\n    ...\n", "entry_point": "f", "test": "def check(f): ..."}
FUNCTION |= {"test_style": "check"}
ENGLISH = FUNCTION | {"prompt": '"""\nDouble it.\nassert f(2) == 4\n"""\n', "test_style": "asserts"}
INSTRUCTED = FUNCTION | {"instruct_prompt": " Write f. "}
CASE = {"input": "1", "output": "2", "testtype": "stdin"}
CONTEST = {"id": "a", "question": "Read and double.", "tests": [CASE]}
STARTER = {"id": "a", "question": "Double.", "starter_code": "class S: ...", "func_name": "f"}
STARTER |= {"tests": [CASE | {"testtype": "functional"}]}


@pytest.mark.parametrize(
    "benchmark, domain, row",
    [
        ("gsm8k", "math", {"id": "a", "question": " 1+1? \n", "answer": "2"}),
        ("aqua", "math", CHOICE),
        ("reclor", "logic", LOGIC),
        ("humaneval_plus", "code", FUNCTION),
        ("mbpp_plus", "code", ENGLISH),
        ("bigcodebench", "code", INSTRUCTED),
        ("livecodebench", "code", CONTEST),
        ("livecodebench", "code", STARTER),
    ],
)
def test_a_training_row_is_asked_as_evaluation_asks_it(benchmark, domain, row):
    item = as_item(benchmark, row, "f")
    for given in (row | {"solution": "2"}, row | {"solution": "2", "domain": domain}):
        example = as_example(given, 1, "f", domain="" if "domain" in given else domain)
        assert example.prompt == [{"role": "user", "content": item.question}]
        assert example.completion == "2"


def test_options_and_tests_stay_in_meta_for_a_grader():
    assert as_example(CHOICE | {"solution": "B"}, 1, "f").meta == {"options": CHOICE["options"]}
    assert as_example(FUNCTION | {"solution": "x"}, 1, "f").meta == {
        "entry_point": "f",
        "test": FUNCTION["test"],
        "test_style": "check",
    }


@pytest.mark.parametrize("options", ["A, B", {"A": "x"}, [None, "b"], [" ", "b"], list("abcdefghijk"), 3])
def test_options_that_cannot_be_lettered_are_an_error(options):
    with pytest.raises(UserError, match="f, row 3: expected options as a list of at most 10 texts, found"):
        as_example(GOOD | {"options": options}, 3, "f")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": []},
        {"prompt": [], "completion": "2"},
        {"prompt": "", "completion": "2"},
        {"question": " ", "solution": "2"},
        {"instruction": "", "output": "2"},
        {"conversations": [GPT]},
        {"conversations": []},
        {"messages": [SAID]},
        {"messages": [SYSTEM, SAID]},
        {"messages": [SYSTEM, {"role": "user", "content": "\n"}, SAID]},
    ],
)
def test_a_row_without_prompt_is_an_error_naming_the_row(row):
    with pytest.raises(UserError, match="f, row 3: the prompt is empty"):
        as_example(row, 3, "f")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": None},
        {"messages": "hello"},
        {"messages": [*ASK, "2"]},
        {"messages": {"role": "user"}},
        {"messages": [*ASK, {"role": "assistant", "content": None}]},
        {"prompt": None, "completion": "2"},
        {"prompt": 5, "completion": "2"},
        {"prompt": [{"role": "user", "content": 5}], "completion": "2"},
        {"prompt": [{"content": "1+1?"}], "completion": "2"},
        {"prompt": "q", "completion": 7},
        {"prompt": "1+1?", "completion": ["2"]},
        {"question": None, "solution": "2"},
    ],
    ids=str,
)
def test_a_row_that_is_not_text_is_an_error_naming_the_row(row):
    with pytest.raises(UserError, match="f, row 3: expected text or messages with role and content, found"):
        as_example(row, 3, "f")


@pytest.mark.parametrize("field", ["instruction", "input"])
@pytest.mark.parametrize("value", [["a"], 5])
def test_an_alpaca_field_that_is_not_text_is_an_error_naming_it(field, value):
    with pytest.raises(UserError, match=f"f, row 3, {field}: expected text or messages"):
        as_example(ALPACA | {field: value}, 3, "f")


@pytest.mark.parametrize(
    "turns, words",
    [
        (None, "expected conversations with from and value as texts, found null"),
        ([{"from": "human"}], "expected conversations with from and value as texts"),
        ([{"from": "human", "value": None}], "expected conversations with from and value as texts"),
        ([HUMAN, {"from": "observation", "value": "x"}], "message 2 has the role 'observation'; expected one"),
    ],
)
def test_a_sharegpt_row_of_the_wrong_shape_is_an_error_naming_the_row(turns, words):
    with pytest.raises(UserError, match=f"f, row 3: {words}"):
        as_example({"conversations": turns}, 3, "f")


def test_a_role_that_no_template_knows_is_an_error_naming_row_and_message():
    turns = [{"role": "usr", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    words = r"f, row 3: message 1 has the role 'usr'; expected one of system, developer, user, assistant, tool\."
    with pytest.raises(UserError, match=words):
        as_example({"messages": turns}, 3, "f")


def test_text_alone_is_an_example_without_a_prompt():
    row = {"text": "One day, a cat.", "label": 1}
    assert as_example(row, 3, "f") == Example("3", [], "One day, a cat.", meta={"label": 1})
    assert as_example(row | {"messages": None}, 3, "f").prompt == []
    assert detect([row]).name == "text"
    with pytest.raises(UserError, match="there is no completion to train on"):
        as_example({"text": " "}, 3, "f")
    with pytest.raises(UserError, match=r"f, row 3: expected text or messages"):
        as_example({"text": 7}, 3, "f")


def test_unknown_fields_are_an_error_that_lists_them_and_what_is_expected():
    with pytest.raises(UserError, match=r"f, row 3: found the fields body, label; expected messages, prompt and"):
        as_example({"body": "a", "label": 1}, 3, "f")
    with pytest.raises(UserError, match=r"f, row 1: found the fields none; .*ShareGPT.*Alpaca"):
        detect([{}], "f")


@pytest.mark.parametrize(
    "row, words",
    [
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "prompt, chosen, rejected, which are .* without completion"),
        ({"question": "q", "answer": "2"}, "question, answer, which are question/solution without solution"),
        ({"instruction": "q"}, "instruction, which are Alpaca without output"),
    ],
)
def test_a_layout_without_its_reply_is_an_error_that_names_the_missing_field(row, words):
    with pytest.raises(UserError, match=words):
        detect([row, row], "f")
    assert detect([row], "f", needs_completion=False).name == layout_name(row)


def test_no_row_at_all_is_an_error():
    with pytest.raises(UserError, match="f: there are no rows to train on"):
        detect([], "f")


@pytest.mark.parametrize("completion", [[{"role": "user", "content": "2"}], [SAID, SAID]])
def test_a_completion_of_another_form_is_an_error_and_not_an_empty_one(completion):
    with pytest.raises(UserError, match="row 1: the completion must be a single message of the assistant"):
        as_example({"prompt": "1+1?", "completion": completion}, 1, "f", needs_completion=False)


def test_rows_of_gsm8k_have_their_solution_and_gold_in_one_field():
    row = {"question": "How many?", "answer": "500*2 = 1000\n#### 1,000"}
    example = as_example(row, 1, "rows")
    assert (example.completion, example.gold) == ("500*2 = 1000", "1000")
    assert detect([row]).name == "question/solution"


def test_null_columns_show_no_layout():
    assert detect([{"messages": None, "question": "1+1?", "solution": "2"}]).name == "question/solution"
