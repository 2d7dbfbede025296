"""Hooks that the tests name as "prompt_hooks:function"."""

CALLS = []


def shout(observation):
    CALLS.append(observation)
    return f"SEEN {len(observation)} VALUES"


def arrow(action):
    return "<-" if action == 0 else "->"


def read_arrow(text):
    return {"<-": 0, "->": 1}.get(text)


class Words:
    @staticmethod
    def of(action):
        return f"move {int(action)}"


NOT_CALLABLE = "text"
