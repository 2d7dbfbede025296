"""A few environments of every family, as `python -m benches.zoo` walks all of them."""

import importlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
try:
    catalogue = importlib.import_module("benches.zoo.catalogue")
    table = importlib.import_module("benches.zoo.table")
    walker = importlib.import_module("benches.zoo.walk")
finally:
    sys.path.remove(str(ROOT))

pytest.importorskip("popgym", reason="the extra zoo is not installed")
ROWS = {row.name: row for row in table.read()}
SAMPLE = catalogue.sample({name: row.family for name, row in ROWS.items()})


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    # MuJoCo writes a log into the directory it is run in.
    monkeypatch.chdir(tmp_path)
    catalogue.register()


@pytest.mark.parametrize("name", SAMPLE)
def test_it_comes_through_and_a_change_is_seen(name):
    row = ROWS[name]
    found = walker.walk(row.family, name, row.shift)
    assert found.encoder == row.encoder
    # Physics differs in the last digits between machines, so only the clear cases must stay.
    if row.observation_held > row.observation_random + 0.1:
        assert found.verdict == "sees", found


def test_the_sample_has_every_family_and_every_encoder():
    rows = [ROWS[name] for name in SAMPLE]
    assert {row.family for row in rows} == set(catalogue.FAMILIES)
    kinds = {re.sub(r"\(.*", "", row.encoder) for row in rows}
    assert kinds == {"none", "GreyGrid", "ExactContent", "RandomProjection"}
    assert sum(row.verdict == "sees" for row in rows) > 0.75 * len(rows)


def test_nearly_every_environment_is_seen():
    counts = Counter(row.verdict for row in ROWS.values())
    assert counts["sees"] >= 0.95 * (counts["sees"] + counts["blind"])
    assert counts.total() > 350
    assert all(bool(row.reason) == (row.verdict == "same states") for row in ROWS.values())


def test_every_registered_environment_is_in_the_table_or_cannot_be_made():
    page = table.PAGE.read_text(encoding="utf-8")
    for name in catalogue.environments():
        assert name in ROWS or f"`{name}`" in page, name


def test_a_policy_that_does_not_matter_is_found_out():
    assert walker.same_states("popgym-RepeatFirstEasy-v0", lambda _: 0)
    assert not walker.same_states("CliffWalking-v1", lambda _: 0)


def test_a_walk_refuses_what_does_not_come_through(monkeypatch):
    step = walker.JointKLDivergenceWrapper.step

    def copying(self, action):
        observation, *rest = step(self, action)
        return (observation.copy(), *rest)

    monkeypatch.setattr(walker.JointKLDivergenceWrapper, "step", copying)
    with pytest.raises(AssertionError, match="another object"):
        walker.play("CartPole-v1", walker.at_random, 1, 5)
