"""What several processes measured together, the same to the last bit on each of them."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist

Own = TypeVar("Own")
Shared = TypeVar("Shared")


def on_all_ranks(
    measure: Callable[[], tuple[Own, Shared]], group: Any, together: bool
) -> tuple[Own, list[Shared]]:
    """Measures on every process, and gives each what all of them found.

    A sum by an all-reduce may be rounded in another order on each process; numbers that are
    gathered and then summed in the order of the ranks are the same everywhere.

    Args:
        measure: Returns what stays here, and plain numbers for all.
        group: The process group; None for the default one.
        together: Whether to ask the others at all, where torch.distributed runs.

    Returns:
        What stays here, and the numbers of all processes in the order of their ranks.

    Raises:
        ValueError: Another process could not measure; its own exception is raised there.
    """
    if not (together and dist.is_available() and dist.is_initialized()):
        own, shared = measure()
        return own, [shared]
    result: tuple[Own, Shared] | None = None
    error: Exception | None = None
    # An exception here would leave the others waiting for this process.
    try:
        result = measure()
    except Exception as raised:
        error = raised
    message = None if error is None else f"{type(error).__name__}: {error}"
    answer = (message, None if result is None else result[1])
    answers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, answer, group=group)
    if error is not None:
        raise error
    for rank, (failure, _) in enumerate(answers):
        if failure is not None:
            raise ValueError(f"rank {rank} could not measure its batch: {failure}")
    own, _ = cast("tuple[Own, Shared]", result)
    return own, [shared for _, shared in answers]
