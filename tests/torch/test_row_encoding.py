"""Rows as tokens: which of them the assistant wrote."""

import pytest
from reference_models import CHAT_TEMPLATE, tokenizer

from kl_proteus.cli import score_options
from kl_proteus.estimators import Estimator
from kl_proteus.torch.encoding import OVERLONG, PLAIN_TEMPLATE, TURNS, RowEncoder
from kl_proteus.torch.results import Direction

TOKENIZER = tokenizer()
CHAT = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "ciao"},
]
GENERATION = (
    "{% for message in messages %}<|start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>"
    "{% endgeneration %}{{ '\\n' }}{% else %}{{ message.content }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def encode(row, *, made=TOKENIZER, **options):
    """The whole text, and the parts that are scored."""
    encoded = RowEncoder(made, **options).encode(row)
    assert len(encoded.ids) == len(encoded.scored)
    parts, run = [], []
    for token, scored in [*zip(encoded.ids, encoded.scored, strict=True), (None, False)]:
        if scored:
            run.append(token)
        elif run:
            parts.append(made.decode(run))
            run = []
    return made.decode(encoded.ids), parts


@pytest.mark.parametrize("made", [TOKENIZER, tokenizer(GENERATION)], ids=["plain", "generation"])
def test_the_assistants_turns_end_with_their_end_token(made):
    text, parts = encode({"messages": CHAT}, made=made)
    assert text == (
        "<|start|>system\nbe kind<|end|>\n<|start|>user\nhi<|end|>\n"
        "<|start|>assistant\nhello<|end|>\n<|start|>user\nbye<|end|>\n"
        "<|start|>assistant\nciao<|end|>\n"
    )
    assert parts == ["hello<|end|>", "ciao<|end|>"]
    assert encode({"messages": CHAT}, made=made, turns="last")[1] == ["ciao<|end|>"]


@pytest.mark.parametrize("made", [TOKENIZER, tokenizer(GENERATION)], ids=["plain", "generation"])
def test_prompt_and_completion_as_messages(made):
    row = {"prompt": CHAT[:4], "completion": CHAT[4:], "note": "ignored"}
    text, parts = encode(row, made=made)
    assert text == encode({"messages": CHAT}, made=made)[0]
    assert parts == ["ciao<|end|>"]


def test_prompt_and_completion_as_texts():
    row = {"prompt": "x=1\nAction:", "completion": " go \u00e9\U0001f600"}
    assert encode(row) == ("x=1\nAction: go \u00e9\U0001f600", [" go \u00e9\U0001f600"])
    assert encode({"prompt": "", "completion": "a"}) == ("a", ["a"])
    assert encode({"prompt": "a", "completion": ""}) == ("a", [])


def test_a_token_that_straddles_the_border_belongs_to_the_completion():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    merged = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3}, merges=[("a", "b")]))
    made = PreTrainedTokenizerFast(tokenizer_object=merged)
    encoded = RowEncoder(made).encode({"prompt": "ca", "completion": "bc"})
    assert encoded.ids == [2, 3, 2]
    assert encoded.scored == [False, True, True]


def test_special_tokens_of_the_tokenizer_are_context():
    from tokenizers.processors import TemplateProcessing

    made = tokenizer()
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", 1)]
    )
    encoded = RowEncoder(made).encode({"prompt": "", "completion": "ab"})
    assert encoded.ids[0] == 1
    assert encoded.scored == [False, True, True]
    chat = RowEncoder(made).encode({"messages": CHAT[1:3]})
    assert chat.ids.count(1) == 2  # those of the template, and no other


def test_preference_rows():
    row = {"prompt": CHAT[:4], "chosen": CHAT[4:], "rejected": [{**CHAT[4], "content": "no"}]}
    assert encode(row, completion_field="chosen")[1] == ["ciao<|end|>"]
    assert encode(row, completion_field="rejected")[1] == ["no<|end|>"]
    with pytest.raises(ValueError, match=r"messages, or prompt and completion, got the fields"):
        encode(row)


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_rows_that_the_package_exports(kind, tmp_path):
    import gymnasium as gym

    from kl_proteus import LLMTrainingWrapper
    from kl_proteus.llm.recording.jsonl import read_rows

    env = LLMTrainingWrapper(gym.make("FrozenLake-v1"), tmp_path, kind, mode="monitor")
    env.reset(seed=0)
    for action in (2, 2, 1, 1, 1, 2) * 4:
        if any(env.step(action)[2:4]):
            env.reset()
    path = env.save_all_trajectories("rows.jsonl")
    env.close()
    parts = [encode(row)[1] for row in read_rows(path)]
    expected = {"chat": ["RIGHT<|end|>"], "completion": [" RIGHT"]}
    assert expected[kind] in parts
    assert all(len(part) == 1 for part in parts)


def test_the_plain_template():
    text, parts = encode({"messages": CHAT}, made=tokenizer(None), chat_template=PLAIN_TEMPLATE)
    assert text == "system: be kind\nuser: hi\nassistant: hello\nuser: bye\nassistant: ciao\n"
    assert parts == [" hello\n", " ciao\n"]


def test_a_thinking_template_scores_the_last_turn_only():
    # Earlier turns lose what the last one keeps, as templates of reasoning models do.
    template = CHAT_TEMPLATE.replace(
        "{{ message.content }}", "{{ message.content if loop.last else message.content[:3] }}"
    )
    made = tokenizer(template)
    with pytest.raises(ValueError, match="renders the conversation differently"):
        encode({"messages": CHAT}, made=made)
    assert encode({"messages": CHAT}, made=made, turns="last")[1] == ["ciao<|end|>"]


LONG = {"prompt": "0123456789", "completion": "abcde"}


@pytest.mark.parametrize(
    ("overlong", "text", "parts", "cut"),
    [
        ("cut-end", "0123456789ab", ["ab"], 3),
        ("cut-start", "3456789abcde", ["abcde"], 3),
        ("skip", "", [], 15),
    ],
)
def test_rows_that_are_too_long(overlong, text, parts, cut):
    assert encode(LONG, max_length=12, overlong=overlong) == (text, parts)
    assert RowEncoder(TOKENIZER, max_length=12, overlong=overlong).encode(LONG).cut == cut
    assert RowEncoder(TOKENIZER, max_length=15, overlong=overlong).encode(LONG).cut == 0


def test_rows_that_are_too_long_can_be_refused():
    with pytest.raises(ValueError, match="at most 12 tokens, got 15"):
        encode(LONG, max_length=12, overlong="refuse")


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({}, ValueError, "messages, or prompt and completion"),
        ({"text": "a"}, ValueError, r"\['text'\]"),
        ({"prompt": "a"}, ValueError, "completion"),
        ({"messages": []}, TypeError, "messages must be a list of messages"),
        ({"messages": "hi"}, TypeError, "messages must be a list"),
        ({"messages": ["hi"]}, TypeError, "objects with role and content"),
        ({"messages": CHAT[:2]}, ValueError, "have a turn of the assistant"),
        ({"prompt": "a", "completion": 3}, TypeError, "must both be texts"),
        ({"prompt": "a", "completion": CHAT[2:3]}, TypeError, "must both be texts"),
        ({"prompt": CHAT[:2], "completion": CHAT[1:2]}, ValueError, "turn of the assistant"),
        ({"prompt": "\ud800", "completion": "a"}, ValueError, "surrogate"),
        ({"messages": [*CHAT[:2], {"role": "assistant"}]}, ValueError, "content"),
        ({"messages": [{**CHAT[0], "content": "\ud800"}, *CHAT[1:3]]}, ValueError, "surrogate"),
        ({"messages": CHAT[2:]}, ValueError, "must not begin with the assistant"),
        ({"prompt": CHAT[:0], "completion": CHAT[2:]}, TypeError, "prompt must be a list"),
    ],
)
def test_rows_that_cannot_be_scored(row, error, message):
    strict = CHAT_TEMPLATE.replace(
        "{{ message.content }}",
        "{% if message.content is not defined %}{{ raise_exception('no content') }}{% endif %}"
        "{{ message.content }}",
    )
    with pytest.raises(error, match=message):
        RowEncoder(tokenizer(strict)).encode(row)


def test_without_a_template():
    with pytest.raises(ValueError, match="no chat template for messages"):
        RowEncoder(tokenizer(None)).encode({"messages": CHAT})
    with pytest.raises(ValueError, match="cannot render the conversation"):
        RowEncoder(tokenizer("{{ nothing.here.at_all }}")).encode({"messages": CHAT})


def test_options():
    with pytest.raises(ValueError, match="turns must be one of"):
        RowEncoder(TOKENIZER, turns="first")
    with pytest.raises(ValueError, match="overlong must be one of"):
        RowEncoder(TOKENIZER, overlong="cut")
    with pytest.raises(TypeError, match="tokenizer must be a fast one"):
        RowEncoder(object())


def test_the_command_line_spells_the_same_options():
    assert score_options.TURNS == TURNS
    assert score_options.OVERLONG == OVERLONG
    assert Estimator.__args__ == score_options.ESTIMATORS
    assert Direction.__args__ == score_options.DIRECTIONS
