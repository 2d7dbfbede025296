"""Whether two tokenizers give ids that mean the same."""

import hashlib
import json
from typing import Any, cast

__all__ = ["tokenizer_difference", "tokenizer_hash"]

_PARTS = ("vocabulary", "special tokens", "chat template")


def tokenizer_hash(tokenizer: Any, *, chat_template: bool = True) -> str:
    """Hashes what ids of a tokenizer mean: its vocabulary, special ids and chat template.

    Args:
        tokenizer: A tokenizer of Transformers.
        chat_template: Whether the template enters.

    Returns:
        SHA-256, 64 hexadecimal digits.
    """
    parts = _parts(tokenizer)
    if not chat_template:
        del parts["chat template"]
    return hashlib.sha256(_canonical(parts)).hexdigest()


def tokenizer_difference(one: Any, other: Any, *, chat_template: bool = True) -> str | None:
    """The first of vocabulary, special tokens and chat template in which two tokenizers differ.

    Args:
        one: A tokenizer of Transformers.
        other: Another one.
        chat_template: Whether the templates are compared.

    Returns:
        The part that differs; None if the ids of both mean the same.
    """
    left, right = _parts(one), _parts(other)
    for part in _PARTS if chat_template else _PARTS[:-1]:
        if _canonical(left[part]) != _canonical(right[part]):
            return part
    return None


def _parts(tokenizer: Any) -> dict[str, Any]:
    special = cast("dict[str, Any]", tokenizer.special_tokens_map)
    return {
        "vocabulary": sorted(cast("dict[str, int]", tokenizer.get_vocab()).items()),
        "special tokens": [
            {name: str(value) for name, value in special.items()},
            sorted(cast("list[int]", tokenizer.all_special_ids)),
        ],
        "chat template": getattr(tokenizer, "chat_template", None),
    }


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()
