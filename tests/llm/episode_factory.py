"""Episodes for the tests of this folder."""

from kl_proteus.llm.recording.episodes import Episode


def make_episode(
    rewards=(1.0,),
    *,
    env_id="CartPole-v1",
    observations=None,
    actions=None,
    texts=None,
    system_prompt="Keep the pole upright.",
    binning="",
    terminated=True,
    padding="",
):
    """An episode with the given rewards; keys default to 0, 1, 2, ..."""
    n = len(rewards)
    observations = list(range(n)) if observations is None else observations
    actions = list(range(n)) if actions is None else actions
    zeros = (0.0,) * n
    return Episode(
        env_id=env_id,
        episode=0,
        system_prompt=system_prompt,
        binning=binning,
        observation_texts=tuple(f"obs {key}{padding}" for key in observations),
        action_texts=tuple(texts) if texts else tuple(f"act {key}" for key in actions),
        observation_keys=tuple(map(str, observations)),
        action_keys=tuple(map(str, actions)),
        base_rewards=tuple(rewards),
        shaped_rewards=tuple(rewards),
        kl_penalties=zeros,
        kl_bonuses=zeros,
        kl_divergences=zeros,
        kl_observations=zeros,
        kl_policies=zeros,
        terminated=terminated,
        truncated=not terminated,
    )
