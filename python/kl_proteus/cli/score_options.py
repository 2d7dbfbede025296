"""What `kl-proteus score` was asked to do."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["COMPLETION_FIELDS", "DIRECTIONS", "DTYPES", "ESTIMATORS", "OVERLONG", "TURNS"]
__all__ += ["ScoreOptions"]

# Spelled out, because the modules that own them import torch or NumPy; tests compare them.
ESTIMATORS = ("k1", "abs", "k2", "k3")
DIRECTIONS = ("policy_reference", "reference_policy")
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
TURNS = ("all", "last")
OVERLONG = ("cut-end", "cut-start", "skip", "refuse")
COMPLETION_FIELDS = ("completion", "chosen", "rejected")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreOptions:
    """The options of `score`, checked on their own.

    Attributes:
        data: Path of the rows.
        policy: Path or name of the policy.
        reference: Path or name of the reference.
        tokenizer: Path or name of the tokenizer of both; None takes the policy's and compares it
            with the reference's.
        output: Path of the scores; None puts them beside the data.
        estimator: What is estimated of each token.
        full_kl: Also the exact divergence at each token.
        direction: Of the exact divergence.
        temperature: What the logits of both models are divided by.
        vocab_size: Ids that both models share; None needs vocabularies of one size.
        chat_template: `plain`, the path of a Jinja file, or None for the tokenizer's.
        turns: Which turns of the assistant are scored.
        completion_field: The field beside `prompt`.
        max_length: Most tokens of a row; None takes the smaller context of the models.
        overlong: What happens to longer rows.
        batch_size: Rows of a forward pass.
        dtype: Of the weights.
        device: Where the models run; `auto` takes an accelerator if there is one.
        attn_implementation: How attention is computed; None lets Transformers choose.
        cache: Directory of the reference's log-probabilities; None keeps none.
        trust_remote_code: Whether code that comes with a model may run.
        json: Results as a JSON object rather than a table.
        quiet: No progress bar.
    """

    data: str
    policy: str
    reference: str
    tokenizer: str | None
    output: str | None
    estimator: str
    full_kl: bool
    direction: str
    temperature: float
    vocab_size: int | None
    chat_template: str | None
    turns: str
    completion_field: str
    max_length: int | None
    overlong: str
    batch_size: int
    dtype: str
    device: str
    attn_implementation: str | None
    cache: str | None
    trust_remote_code: bool
    json: bool
    quiet: bool

    @property
    def output_path(self) -> Path:
        """Where the scores go: `rows.jsonl` has `rows.scores.jsonl` beside it."""
        if self.output is not None:
            return Path(self.output)
        data = Path(self.data)
        return data.with_name(f"{data.name.removesuffix('.jsonl')}.scores.jsonl")
