"""Which environments there are, and what is known of them."""

import os
import random
import warnings

# Rendering environments open windows and sound devices otherwise.
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import gymnasium as gym

FAMILIES = (
    "classic-control",
    "toy-text",
    "box2d",
    "mujoco",
    "minigrid",
    "ale-py",
    "popgym",
    "mo-gymnasium",
)

_PACKAGES = {
    "gymnasium.envs.classic_control": "classic-control",
    "gymnasium.envs.phys2d": "classic-control",
    "gymnasium.envs.toy_text": "toy-text",
    "gymnasium.envs.tabular": "toy-text",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "minigrid": "minigrid",
    "ale_py": "ale-py",
    "popgym": "popgym",
    "mo_gymnasium": "mo-gymnasium",
}

POLICY_DOES_NOT_MATTER = {
    "popgym-MultiarmedBandit": "a bandit: what is seen is the payoff of a lever, not a place",
    "popgym-CountRecall": "the cards are dealt whatever is answered",
}
"""Environments whose states do not depend on the policy, by the beginning of their name, where
playing them with the same seed does not show it already."""

# Each takes longer to play than all others of the tests together.
_SLOW = ("CarRacing", "minecart-rgb", "BabyAI-BossLevel", "MiniGrid-ObstructedMaze-Full")


def register() -> None:
    """Imports what registers environments. Some of them warn while they load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ale_py
        import minigrid  # noqa: F401
        import mo_gymnasium  # noqa: F401
        import popgym  # noqa: F401

        gym.register_envs(ale_py)


def environments() -> dict[str, str]:
    """The family of each registered environment.

    Of the many ids of one Atari game there is the newest alone.
    """
    register()
    found: dict[str, str] = {}
    for name, spec in gym.registry.items():
        point = spec.entry_point if isinstance(spec.entry_point, str) else ""
        for package, family in _PACKAGES.items():
            if point.startswith(package) and (family != "ale-py" or name.startswith("ALE/")):
                found[name] = family
    return dict(sorted(found.items(), key=lambda item: (FAMILIES.index(item[1]), item[0])))


def reason_policy_does_not_matter(name: str) -> str | None:
    """Why the states of an environment do not depend on the policy, if that is known."""
    for beginning, reason in POLICY_DOES_NOT_MATTER.items():
        if name.startswith(beginning):
            return reason
    return None


def sample(known: dict[str, str], each: int = 6, seed: int = 0) -> list[str]:
    """A few quick environments of every family, always the same.

    Args:
        known: The family of each environment to choose from.
        each: How many of a family.
        seed: Of the choice.
    """
    chosen: list[str] = []
    for family in FAMILIES:
        names = [
            name for name, own in known.items() if own == family and not name.startswith(_SLOW)
        ]
        chosen += random.Random(seed).sample(names, min(each, len(names)))
    return chosen
