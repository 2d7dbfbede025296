"""Per-token divergences as rewards."""

from typing import Any, Literal

from kl_proteus import _core
from kl_proteus.estimators import TokenValues


def kl_penalties(
    kl: Any,
    coefficient: Any,
    mask: Any = None,
    *,
    kind: Literal["immediate", "to_go"] = "immediate",
    discount: float = 1.0,
) -> TokenValues:
    """Turns the divergence of each token into the reward that it costs.

    * `"immediate"`: r_t = -coefficient * kl_t. The token is charged for itself.
    * `"to_go"`: r_t = -coefficient * (kl_t + discount * kl_t+1 + discount^2 * kl_t+2 + ...). The
      token is charged for what it leads to as well.

    For kl = (0.1, -0.2, 0.4) and a coefficient of 0.5 that is (-0.05, 0.1, -0.2) and
    (-0.15, -0.1, -0.2).

    The gradient of the KL divergence of whole sequences weighs grad log pi(token t) with the sum
    over t and later: that is `"to_go"` with a discount of 1 where rewards are used as they are, as
    advantages. Where the trainer sums rewards to returns itself (PPO with GAE, REINFORCE with
    reward-to-go), give it `"immediate"`, or the later tokens are charged twice. `"immediate"` used
    as an advantage is the gradient of the per-token divergence at the visited prefixes only.

    Args:
        kl: Divergence of each token, in nats, usually `kl_from_logprobs(..., reduction="none")`
            with the estimator `"k1"`: an array of shape (tokens,) or (sequences, tokens), a list of
            numbers, or a list of lists or arrays.
        coefficient: A number of at least 0, in reward per nat, or anything with such a `value`: a
            coefficient controller.
        mask: True or 1 where a token is the policy's, in the same shape. Other tokens get 0.0, add
            nothing to the sums of earlier ones, and are not counted as steps of the discount: the
            output of a tool is not charged to the policy, and padding changes nothing.
        kind: One of the above.
        discount: From 0 to 1, for `"to_go"`.

    Returns:
        Rewards in the shape of `kl`, float64; nested lists give a list of arrays.

    Raises:
        TypeError: An argument does not hold real numbers, or the mask no bools, 0 or 1.
        ValueError: Shapes differ or are not of rank 1 or 2; the mask holds another number; an
            option or number is out of its range; a kept value is NaN or infinite; or a reward
            overflows.
    """
    return _core.kl_penalties(kl, getattr(coefficient, "value", coefficient), mask, kind, discount)
