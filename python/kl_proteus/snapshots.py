"""Snapshots: distributions of (observation, action) pairs, to save, merge and compare with."""

import json
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from kl_proteus import _core

Snapshot: TypeAlias = dict[str, Any]
"""What `JointKLDivergenceWrapper.snapshot` returns: a plain, versioned, JSON-able dict."""


def to_text(value: Any, name: str, expected: str = "a dict") -> str:
    """Writes a plain dict as strict JSON.

    Args:
        value: A snapshot or state.
        name: How messages call it.
        expected: What they say it should have been.

    Raises:
        TypeError: It is no dict, or holds what JSON cannot.
        ValueError: It holds NaN or an infinity.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__}")
    try:
        return json.dumps(value, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"{name} must hold JSON values only: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must hold finite JSON values: {error}") from None


def reference_text(reference: Snapshot | str | PathLike[str]) -> str:
    """The JSON text of a `reference=` argument.

    Args:
        reference: A snapshot, or the path of a JSON file that holds one.

    Raises:
        OSError: The file cannot be read.
        TypeError: It is neither a dict nor a path.
        ValueError: The file is not UTF-8 text.
    """
    if not isinstance(reference, str | PathLike):
        return to_text(reference, "reference", "a snapshot (dict) or the path of one")
    try:
        path = Path(reference)
        # A device or a pipe may never end.
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError("it is no regular file")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"reference {str(reference)!a} is no UTF-8 text: {error}") from None
    except ValueError as error:  # also names that no file can have
        raise ValueError(f"reference {str(reference)!a} cannot be read: {error}") from None


def merge_snapshots(*snapshots: Snapshot) -> Snapshot:
    """Adds the counts of snapshots, such as those of parallel workers.

    The result does not depend on the order.

    Args:
        *snapshots: What `JointKLDivergenceWrapper.snapshot` returned, at least one.

    Returns:
        A new snapshot; the arguments are as they were.

    Raises:
        TypeError: An argument is no dict of JSON values.
        ValueError: An argument is no snapshot, or the axes or encoders differ; the message says
            which.
    """
    texts = [to_text(part, f"snapshots[{i}]") for i, part in enumerate(snapshots)]
    return json.loads(_core.merge_snapshots(texts))
