"""Hypothesis profiles, and what must be set before a library that reads it is imported."""

import contextlib
import os
import warnings
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

# No test needs a network, nor may one ask for it.
os.environ["HF_HUB_OFFLINE"] = "1"
# Small tensors: a second thread costs more than it brings, above all where tests run in parallel.
os.environ["OMP_NUM_THREADS"] = "1"

# Box2D warns from C while it loads, and where warnings are errors that ends the process. It does
# not install everywhere.
with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import Box2D  # noqa: F401

# Few examples while developing; more, and always the same ones, in CI.
settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci",
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

# What these folders need beyond the extra `dev`. CI checks that nothing was left out there.
NEEDS = {"torch": ("torch", "transformers", "safetensors", "peft"), "trainers": ("trl", "peft")}
collect_ignore = [folder for folder, names in NEEDS.items() if not all(map(find_spec, names))]


def pytest_report_header():
    return [f"tests/{folder} is left out: it needs {NEEDS[folder]}" for folder in collect_ignore]


def pytest_configure(config):
    # TRL 1.16 and PEFT 0.21 read a property that transformers 5.24 has renamed; whoever calls them
    # cannot help that.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:`is_gradient_checkpointing` is deprecated and will be removed in v6. "
        "Use `is_activation_checkpointing` instead.:FutureWarning",
    )


def pytest_collection_modifyitems(items):
    """Refuses ids with addresses: they differ between the processes that share the tests in CI."""
    wrong = sorted({item.nodeid for item in items if " at 0x" in item.nodeid})
    if wrong:
        raise pytest.UsageError(f"ids of tests must be the same in every process, got {wrong}")
