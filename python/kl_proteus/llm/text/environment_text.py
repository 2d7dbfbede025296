"""Prompts from which a language model can learn to act in an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium import spaces

from kl_proteus import _checks
from kl_proteus.hooks import Hook, TextHook
from kl_proteus.llm.tasks.quantities import Quantity, each_quantity
from kl_proteus.llm.tasks.registry import Task, task_for
from kl_proteus.llm.text.action_text import ActionText, WordActions, action_text
from kl_proteus.llm.text.observation_text import observation_renderer
from kl_proteus.llm.text.space_names import value_names

__all__ = ["EnvironmentText"]

_MOST_WORDS = 4096
"""Up to this many actions of a Discrete space, an action_formatter is inverted by trying them."""


class EnvironmentText:
    """Writes the observations and actions of one environment, and reads actions.

    For every member of the action space, `parse_action(action_text(action))` is exactly the
    action, with the dtype and shape of the space. All text is valid UTF-8 and never empty.

    The classic environments of Gymnasium are described in words (see `task_for`), others by the
    names "observation[0]" and "action 3". Each of the hooks replaces one part. A hook is a
    callable, or a string "module:function", which keeps the object easy to pickle.

    Args:
        env_id: Id of the environment, such as "CartPole-v1"; None where it has none.
        observation_space: Space of the observations that will be written.
        action_space: Space of the actions that will be written and read.
        task_description: Says what the task is, in place of the built-in description.
        observation_formatter: Writes an observation: `observation_formatter(observation) -> str`.
        action_formatter: Writes an action: `action_formatter(action) -> str`. The actions of a
            Discrete space (up to 4096) are still read without an `action_parser`.
        action_parser: Reads an answer: `action_parser(text) -> action`. It should raise
            `ValueError` where the text has no action.
        env: The environment, if it is at hand, so that the arguments it was made with can be
            described. It is not kept.

    Raises:
        TypeError: If an argument is of another type, a hook cannot be called, or the action
            space has parts that Gymnasium does not define and there is no `action_formatter`.
        ValueError: If `task_description` is blank, a hook's string names nothing, or two keys of
            a Dict action space are the same text.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("CartPole-v1")
        >>> text = EnvironmentText("CartPole-v1", env.observation_space, env.action_space)
        >>> text.observation_text([0.03, -0.2, 0.04, 1.5])
        'cart position=0.03, cart velocity=-0.2, pole angle=0.04, pole angular velocity=1.5'
        >>> text.action_text(1)
        'RIGHT'
        >>> text.parse_action("Action: right.")
        np.int64(1)
    """

    def __init__(
        self,
        env_id: str | None,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        task_description: str | None = None,
        observation_formatter: Callable[[Any], str] | str | None = None,
        action_formatter: Callable[[Any], str] | str | None = None,
        action_parser: Callable[[str], Any] | str | None = None,
        env: gymnasium.Env[Any, Any] | None = None,
    ) -> None:
        self._task = task_for(env_id, observation_space, action_space, env=env)
        self._description = self._task.description
        if task_description is not None:
            self._description = _checks.text("task_description", task_description, blank=False)
        self._described_by_user = task_description is not None
        self._action_space = action_space
        self._formatter = _hook(TextHook, "action_formatter", action_formatter)
        self._parser = _hook(Hook, "action_parser", action_parser)
        self._legend = ""
        if observation_formatter is not None:
            self._observe: Callable[[Any], str] = TextHook(
                "observation_formatter", observation_formatter
            )
        else:
            self._observe = self._task.observation_formatter or self._renderer(observation_space)
        self._actions = self._builtin_actions()
        self._words: WordActions | None = None
        self._prompt = ""

    @property
    def task(self) -> Task:
        """What is known about the environment, before any hook."""
        return self._task

    def system_prompt(self) -> str:
        """Say what the task is and exactly how to answer.

        Returns:
            The text of a system message, always the same.

        Raises:
            TypeError: If `action_formatter` returns something else than a string.
            ValueError: If it returns a blank string.
        """
        if not self._prompt:
            how = f"{self._legend} {self._instruction()}".strip()
            self._prompt = f"{self._description}\n\n{how}"
        return self._prompt

    def observation_text(self, observation: Any) -> str:
        """Write an observation.

        Args:
            observation: An observation of the observation space. Values outside the bounds of a
                Box are written like others; NaN and infinities are written as words.

        Returns:
            Such as "cart position=0.0273, cart velocity=-0.0061", with about four digits. An
            array with more than 64 scalars is summarised.

        Raises:
            TypeError: If the observation is of another type than the space's, or the
                `observation_formatter` returns something else than a string.
            ValueError: If the observation has another shape, is outside a Discrete space, or the
                `observation_formatter` returns a blank string.
        """
        return self._observe(observation)

    def action_text(self, action: Any) -> str:
        """Write an action.

        Args:
            action: An action of the action space; for a Discrete space any kind of integer, also
                in an array with one element. A Box may be left, but not with NaN.

        Returns:
            Such as "RIGHT" or "[0.25, -1]".

        Raises:
            TypeError: If the action is of another type than the space's, or the
                `action_formatter` returns something else than a string.
            ValueError: If the action has another shape or value than the space allows, or the
                `action_formatter` returns a blank string.
        """
        if self._formatter is not None:
            return self._formatter(action)
        assert self._actions is not None  # the constructor demands a formatter otherwise
        return self._actions.write(action)

    def parse_action(self, text: str) -> Any:
        """Read an answer.

        Case does not matter, nor do quotes around the answer, a period after it, or "Action:"
        before it.

        Args:
            text: What a model answered.

        Returns:
            The action, with the dtype and shape of the action space. As in `action_text`, it may
            be outside the bounds of a Box.

        Raises:
            TypeError: If `text` is not a string, or if there is no `action_parser` for what an
                `action_formatter` writes.
            ValueError: If the text has no action; the message lists the legal answers.
        """
        _check_type("text", text, str)
        if self._parser is not None:
            return self._member(self._parser(text))
        answers = self._answers()
        if answers is None:
            raise TypeError(
                "action_parser must be given to read what action_formatter writes for "
                f"{self._action_space!r}, got None"
            )
        return answers.parse(text)

    def __repr__(self) -> str:
        name = self._task.name or "generic"
        return f"{type(self).__name__}({name}, action_space={self._action_space!r})"

    def _renderer(self, space: spaces.Space[Any]) -> Callable[[Any], str]:
        """Compile the built-in text of observations, and its legend if its names say something."""
        values = self._task.observation_values
        labels = tuple(value.name for value in values)
        if labels == value_names(space, "observation"):
            return observation_renderer(space)
        self._legend = f"An observation gives {each_quantity(values)}."
        return observation_renderer(space, labels)

    def _builtin_actions(self) -> ActionText | None:
        """Choose the built-in text of actions; None for a foreign space that has a formatter."""
        generic = not self._task.name
        words = () if generic else self._task.action_names
        quantities: tuple[Quantity, ...] = () if generic else self._task.action_values
        try:
            return action_text(self._action_space, words, quantities)
        except TypeError:
            if self._formatter is None:
                raise
            return None

    def _answers(self) -> ActionText | None:
        """Return what can read the text of actions without a parser; None if nothing can."""
        if self._formatter is None:
            return self._actions
        space = self._action_space
        if self._words is None and isinstance(space, spaces.Discrete) and space.n <= _MOST_WORDS:
            self._words = WordActions(space, [self._formatter(a) for a in _elements(space)])
        return self._words

    def _instruction(self) -> str:
        """Say how to answer."""
        answers = self._answers()
        if answers is None:
            return "Answer with nothing but the action."
        if self._formatter is None or self._described_by_user or not self._task.name:
            return answers.instruction()
        # The description uses the names of the task.
        assert isinstance(answers, WordActions)
        pairs = zip(self._task.action_names, answers.words, strict=True)
        renamed = [f"{new} for {name}" for name, new in pairs if new != name]
        if not renamed:
            return answers.instruction()
        return f"{answers.instruction()} Here you write {', '.join(renamed)}."

    def _member(self, action: Any) -> Any:
        """Check what a parser returned, and give it the dtype and shape of the space."""
        actions = self._actions
        try:
            if actions is not None:
                return actions.parse(actions.write(action))
            if self._action_space.contains(action):
                return action
        except (TypeError, ValueError) as error:
            raise self._not_member(action) from error
        raise self._not_member(action)

    def _not_member(self, action: Any) -> ValueError:
        return ValueError(
            f"the result of action_parser must be an element of {self._action_space!r}, "
            f"got {action!r}"
        )


def _check_type(argument: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(
            f"{argument} must be a {kind.__name__}, got {value!r} ({type(value).__name__})"
        )


def _hook(kind: type[Any], argument: str, source: Any) -> Any:
    return None if source is None else kind(argument, source)


def _elements(space: spaces.Discrete[Any]) -> list[Any]:
    first = int(space.start)
    return [space.dtype.type(number) for number in range(first, first + int(space.n))]
