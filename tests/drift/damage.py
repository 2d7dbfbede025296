"""Saved JSON with one thing wrong."""

import json

from hypothesis import strategies as st

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)


def paths(value, prefix=()):
    """Every place in nested JSON."""
    entries = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in entries:
        yield (*prefix, key)
        yield from paths(child, (*prefix, key))


@st.composite
def damaged(draw, text):
    """JSON with one entry removed, replaced or repeated, or cut short."""
    if draw(st.integers(0, 5)) == 0:
        return text[: draw(st.integers(0, len(text) - 1))]
    value = json.loads(text)
    *way, last = draw(st.sampled_from(list(paths(value))))
    parent = value
    for key in way:
        parent = parent[key]
    action = draw(st.sampled_from(["remove", "replace", "nudge", "repeat"]))
    if action == "remove":
        del parent[last]
    elif action == "repeat" and isinstance(parent, list):
        parent.append(parent[last])
    elif action == "nudge" and type(parent[last]) is int:
        parent[last] += draw(st.sampled_from([-1, 1, 2**31, 2**63]))
    else:
        parent[last] = draw(junk)
    return json.dumps(value)
