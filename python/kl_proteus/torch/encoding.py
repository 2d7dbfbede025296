"""Rows of training data as token ids, with a mask of the tokens that the policy wrote.

The rows are those that `kl_proteus.llm.export` writes and TRL reads: `{"messages": [...]}`, or
`{"prompt": ..., "completion": ...}` with two texts or two lists of messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from kl_proteus import _checks

__all__ = ["OVERLONG", "PLAIN_TEMPLATE", "TURNS", "EncodedRow", "Overlong", "RowEncoder", "Turns"]

Turns: TypeAlias = Literal["all", "last"]
"""Which turns of the assistant are scored."""

Overlong: TypeAlias = Literal["cut-end", "cut-start", "skip", "refuse"]
"""What happens to a row with too many tokens."""

TURNS: tuple[Turns, ...] = ("all", "last")
OVERLONG: tuple[Overlong, ...] = ("cut-end", "cut-start", "skip", "refuse")

PLAIN_TEMPLATE = (
    "{% if bos_token %}{{ bos_token }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A chat template for tokenizers without one: a line `role: content` a message."""

_Messages: TypeAlias = list[dict[str, Any]]
_Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A row as a model sees it.

    Attributes:
        ids: Token ids.
        scored: For each of them, whether it belongs to a completion.
        cut: Tokens that were left out because the row is too long; all of them for a skipped row.
    """

    ids: list[int]
    scored: list[bool]
    cut: int


class RowEncoder:
    """Turns rows into tokens.

    In conversations the turns of the assistant are scored, from the end of the generation prompt
    (`<|assistant|>` or whatever the chat template writes) to the end of the turn, its end token
    included. A template that marks them itself with `{% generation %}` is taken at its word.
    Prompt and completion are encoded as one text; a token that straddles the border belongs to the
    completion. No end token is added.

    Args:
        tokenizer: A tokenizer of Transformers, backed by the `tokenizers` library.
        chat_template: Jinja text in place of the tokenizer's own template, or None.
        turns: `"all"` turns of the assistant, or only the `"last"` message.
        completion_field: Name of the field beside `prompt`.
        max_length: Most tokens of a row; None sets no limit.
        overlong: For longer rows: `"cut-end"` drops what is too much, so that every scored token
            keeps its whole context; `"cut-start"` drops the beginning of the context; `"skip"`
            scores nothing of the row; `"refuse"` raises.

    Raises:
        TypeError: The tokenizer does not say which characters a token covers.
        ValueError: An option is unknown.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        turns: Turns = "all",
        completion_field: str = "completion",
        max_length: int | None = None,
        overlong: Overlong = "cut-end",
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise TypeError(
                "tokenizer must be a fast one (backed by the tokenizers library), got "
                f"{type(tokenizer).__name__}: the others do not say which text a token covers"
            )
        if turns not in TURNS:
            raise ValueError(f"turns must be one of {TURNS}, got {turns!r}")
        if overlong not in OVERLONG:
            raise ValueError(f"overlong must be one of {OVERLONG}, got {overlong!r}")
        self._tokenizer = tokenizer
        self._template = chat_template or cast("str | None", tokenizer.chat_template)
        self._turns: Turns = turns
        self._field = completion_field
        self._max_length = max_length
        self._overlong: Overlong = overlong

    def encode(self, row: Mapping[str, Any]) -> EncodedRow:
        """Encodes a row.

        Args:
            row: Fields by name; others than those of the formats are ignored.

        Returns:
            Its tokens, at most `max_length`.

        Raises:
            TypeError: A field has another type.
            ValueError: A field is missing; the conversation cannot be rendered, or holds nothing
                to score; or the row is too long and `overlong` is `"refuse"`.
        """
        if "messages" in row:
            ids, scored = self._conversation(_messages("messages", row["messages"]), 0)
        elif "prompt" in row and self._field in row:
            ids, scored = self._completion(row["prompt"], row[self._field])
        else:
            raise ValueError(
                f"a row must hold messages, or prompt and {self._field}, got the fields "
                f"{sorted(row)}"
            )
        return self._fit(ids, scored)

    def _completion(self, prompt: Any, completion: Any) -> tuple[list[int], list[bool]]:
        if isinstance(prompt, str) and isinstance(completion, str):
            text = _checks.text("prompt", prompt) + _checks.text(self._field, completion)
            return self._tokens(text, [(len(prompt), len(text))], special=True)
        if isinstance(prompt, str) or isinstance(completion, str):
            raise TypeError(
                f"prompt and {self._field} must both be texts or both be lists of messages, got "
                f"{type(prompt).__name__} and {type(completion).__name__}"
            )
        before = _messages("prompt", prompt)
        return self._conversation([*before, *_messages(self._field, completion)], len(before))

    def _conversation(self, messages: _Messages, first: int) -> tuple[list[int], list[bool]]:
        """Scores the assistant's turns from message number `first` on."""
        if self._template is None:
            raise ValueError(
                "the tokenizer has no chat template for messages; choose one (the command line "
                "takes --chat-template FILE, or --chat-template plain)"
            )
        wanted = [
            index
            for index, message in enumerate(messages)
            if index >= first and message.get("role") == "assistant"
        ]
        if self._turns == "last":
            wanted = [index for index in wanted if index == len(messages) - 1]
        if not wanted:
            which = "end with a turn" if self._turns == "last" else "have a turn"
            raise ValueError(f"the conversation must {which} of the assistant, got none")
        if "generation %}" in self._template or "generation -%}" in self._template:
            return self._marked(messages, wanted)
        if 0 in wanted:
            raise ValueError(
                "the conversation must not begin with the assistant, whose turn has no generation "
                "prompt there; put a message before it, or use a template with {% generation %}"
            )
        text = _checks.text("the conversation", self._render(messages))
        spans = [self._span(text, messages, index) for index in wanted]
        return self._tokens(text, spans, special=False)

    def _span(self, text: str, messages: _Messages, index: int) -> _Span:
        """Where in the rendered conversation the assistant wrote a message."""
        head = self._render(messages[:index], add_generation_prompt=True)
        last = index == len(messages) - 1
        upto = text if last else self._render(messages[: index + 1])
        if not (text.startswith(upto) and upto.startswith(head)):
            raise ValueError(
                f"the chat template renders the conversation differently up to message {index}, "
                "so the assistant's tokens cannot be told apart; score the last turn only, or use "
                "a template with {% generation %}"
            )
        end = cast("str | None", self._tokenizer.eos_token)
        # What follows the end token (often a line break) is the template's, not the policy's.
        ends = upto.rfind(end, len(head)) if end else -1
        return len(head), len(upto) if ends < 0 else ends + len(cast(str, end))

    def _marked(self, messages: _Messages, wanted: list[int]) -> tuple[list[int], list[bool]]:
        encoded = self._apply(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids = cast("list[int]", encoded["input_ids"])
        marked = [bool(mark) for mark in cast("list[int]", encoded["assistant_masks"])]
        runs = _runs(marked)
        turns = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        if len(turns) != len(wanted):
            if len(runs) != len(turns):
                raise ValueError(
                    "the chat template must mark each turn of the assistant with {% generation %} "
                    f"once, got {len(runs)} marks for {len(turns)} turns"
                )
            runs = [run for run, turn in zip(runs, turns, strict=True) if turn in wanted]
        scored = [any(a <= place < b for a, b in runs) for place in range(len(ids))]
        return ids, scored

    def _tokens(
        self, text: str, spans: Sequence[_Span], *, special: bool
    ) -> tuple[list[int], list[bool]]:
        encoded = self._tokenizer(
            text, add_special_tokens=special, return_offsets_mapping=True, verbose=False
        )
        ids = cast("list[int]", encoded["input_ids"])
        offsets = cast("list[_Span]", encoded["offset_mapping"])
        scored = [
            any(start < b and end > a for a, b in spans) and end > start for start, end in offsets
        ]
        return list(ids), scored

    def _render(self, messages: _Messages, *, add_generation_prompt: bool = False) -> str:
        rendered = self._apply(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return cast(str, rendered)

    def _apply(self, messages: _Messages, **options: Any) -> Any:
        try:
            return self._tokenizer.apply_chat_template(
                messages, chat_template=self._template, **options
            )
        # A template is a program of its own: it raises what it likes.
        except Exception as error:
            raise ValueError(
                f"the chat template cannot render the conversation: {type(error).__name__}: {error}"
            ) from error

    def _fit(self, ids: list[int], scored: list[bool]) -> EncodedRow:
        limit = self._max_length
        if limit is None or len(ids) <= limit:
            return EncodedRow(ids, scored, 0)
        if self._overlong == "refuse":
            raise ValueError(f"a row must have at most {limit} tokens, got {len(ids)}")
        if self._overlong == "skip":
            return EncodedRow([], [], len(ids))
        kept = slice(None, limit) if self._overlong == "cut-end" else slice(-limit, None)
        return EncodedRow(ids[kept], scored[kept], len(ids) - limit)


def _messages(field: str, value: Any) -> _Messages:
    if not isinstance(value, list) or not value:
        raise TypeError(f"{field} must be a list of messages, got {value!r}")
    messages = cast("list[Any]", value)
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise TypeError(f"{field} must hold objects with role and content, got {message!r}")
    return cast(_Messages, messages)


def _runs(marks: Sequence[bool]) -> list[_Span]:
    """Start and end of each run of marks."""
    edges = [
        i
        for i in range(len(marks) + 1)
        if (i > 0 and marks[i - 1]) != (i < len(marks) and marks[i])
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))
