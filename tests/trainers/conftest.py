"""What every test with a trainer of TRL needs."""

import pytest

from trainers import tiny

# TRL 1.16 reads a property that transformers 5.24 has renamed; nobody who calls it can help that.
RENAMED = (
    "ignore:`is_gradient_checkpointing` is deprecated and will be removed in v6. "
    "Use `is_activation_checkpointing` instead.:FutureWarning"
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "trainers":
            item.add_marker(pytest.mark.filterwarnings(RENAMED))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of the tiny model."""
    return tiny.saved_model(tmp_path_factory.mktemp("tiny-model"))
