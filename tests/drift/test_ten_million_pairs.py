"""Ten million pairs through one tracker: the value stays exact, and memory stays where it was."""

import json
import subprocess
import sys

from drift.harness import assert_close
from reference import drift, noise_floor

# In a process of its own, so that nothing else moves the resident memory.
SCRIPT = """
import json
import numpy as np
import psutil
from gymnasium import spaces
from kl_proteus._core import PairTracker
from kl_proteus.spaces import layout_from_space

WINDOW, CHUNK = 1000, 100_000
tracker = PairTracker(
    layout_from_space(spaces.Box(-1, 1, (3,), np.float32)),
    layout_from_space(spaces.Discrete(3), "action"),
    window=WINDOW,
)
rng = np.random.default_rng(0)
pool = [x for x in rng.uniform(-1.2, 1.2, (5000, 3)).astype(np.float32)]
update = tracker.update
memory = []
for part in range(100):
    # The policy and the places drift, so that cells come and go.
    places = (rng.zipf(1.2, CHUNK) + part * 40) % len(pool)
    actions = rng.integers(0, 2 + part % 2, CHUNK)
    for place, action in zip(places.tolist(), actions.tolist()):
        result = update(pool[place], action)
    if part in (9, 99):
        memory.append(psutil.Process().memory_info().rss)
last = [
    (*tracker.observation.digits(pool[place]), int(action))
    for place, action in zip(places[-2 * WINDOW :], actions[-2 * WINDOW :])
]
print(json.dumps({"steps": tracker.statistics()["steps"], "result": result, "memory": memory,
                  "last": last}))
"""


def test_ten_million_pairs():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["steps"] == 10**7

    pairs = [(tuple(digits), action) for *digits, action in seen["last"]]
    counts = drift.count_windows(pairs, 1000, None, reference=None)
    joint, _, _, observation, policy, floor, _ = seen["result"]
    assert_close(joint, drift.kl_joint(*counts, 0.5), 1e-12, "kl_divergence")
    assert_close(observation, drift.kl_observation(*counts, 0.5), 1e-12, "kl_observation")
    assert_close(policy, drift.kl_policy(*counts, 0.5), 1e-12, "kl_policy")
    assert_close(floor, noise_floor.full(*counts, 0.5), 1e-12, "kl_noise_floor")

    early, late = seen["memory"]
    # The allocator may move a few pages; pairs would take gigabytes.
    assert late - early < 2**20, f"{early} bytes at 10^6 pairs, {late} at 10^7"
